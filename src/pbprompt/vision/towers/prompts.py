"""Prompts as token sequences in which some positions are slots for learned vectors, and where these start."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.images.names import read_name
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.tokenizer import AnyTokenizer

NamePosition = Literal["end", "middle", "front"]

# A prompt is a list of ints: a token id, or −(k+1) where the k-th context vector goes.
Prompt = list[int]
INITIAL_STD = 0.02  # of context vectors


def named_prompts(
    tokenizer: AnyTokenizer,
    names: Sequence[str],
    context: int,
    position: NamePosition = "end",
    ending: str = ".",
    fixed: Sequence[int] = (),
) -> list[Prompt]:
    """[SOS] context and name in the wanted order, the ending [EOT], for each class name.

    end: context, `fixed` tokens, name; front: name, context; middle: half the context, name, the other half.
    """
    before = {"end": context, "middle": context // 2, "front": 0}[position]
    slots = [-(k + 1) for k in range(context)]
    stop = tokenizer.encode(ending)
    prompts = []
    for name in names:
        tokens = name_tokens(tokenizer, name, inside=before > 0)
        body = [*slots[:before], *fixed, *tokens, *slots[before:], *stop]
        prompts.append(_enclosed(tokenizer, body, f"class name {name!r} with {context} context vectors"))
    return prompts


def slot_prompt(tokenizer: AnyTokenizer, slots: int, ending: str = ".") -> Prompt:
    """[SOS] slots, the ending [EOT]: what stands for the name comes in a slot too."""
    body = [*(-(k + 1) for k in range(slots)), *tokenizer.encode(ending)]
    return _enclosed(tokenizer, body, f"a prompt of {slots} vectors")


def name_tokens(tokenizer: AnyTokenizer, name: str, inside: bool = True) -> list[int]:
    """A class name's token ids. Inside a sentence a space goes before it, which Gemma's tokens show."""
    words = read_name(name).replace("_", " ").strip()
    tokens = tokenizer.encode(f" {words}" if inside else words, specials=False) if words else []
    if not tokens:
        raise InputError(f"class name {name!r} holds no token: give every class a name")
    return tokens


def text_prompts(tokenizer: AnyTokenizer, texts: Sequence[str]) -> list[Prompt]:
    """[SOS] text [EOT], for each text; no slots."""
    return [_enclosed(tokenizer, tokenizer.encode(text, specials=False), f"text {text!r}") for text in texts]


def _enclosed(tokenizer: AnyTokenizer, body: list[int], what: str) -> Prompt:
    prompt = tokenizer.enclose(body)
    if len(prompt) > tokenizer.context_length:
        raise InputError(
            f"{what} takes {len(prompt)} tokens, but the model reads {tokenizer.context_length}: shorten it"
        )
    return prompt


def common_length(prompts: Sequence[Prompt], slots_are_common: bool) -> int:
    """How many leading positions all prompts share, leaving each at least its EOT."""
    shortest = min(len(prompt) for prompt in prompts)
    for at in range(shortest - 1):
        first = prompts[0][at]
        if (first < 0 and not slots_are_common) or any(prompt[at] != first for prompt in prompts):
            return at
    return shortest - 1


def word_embeddings(backbone: Backbone, words: str, tokens: int) -> Float[Tensor, "b w"]:
    """Token embeddings of words such as "a photo of a", which must take exactly `tokens` tokens."""
    ids = backbone.tokenizer.encode(words)
    if len(ids) != tokens:
        raise InputError(f"words {words!r} take {len(ids)} tokens, but tokens is {tokens}: make them equal")
    return backbone.token_embedding(torch.tensor(ids, device=backbone.device)).float()


def start_context(
    backbone: Backbone, tokens: int, words: str, generator: torch.Generator | None = None
) -> Float[Tensor, "b w"]:
    """Where b context vectors start: at the words' embeddings, or at N(0, 0.02²)."""
    if tokens < 1:
        raise InputError(f"setting 'tokens' is {tokens}: use at least 1")
    if words:
        return word_embeddings(backbone, words, tokens).cpu()
    return INITIAL_STD * torch.randn(tokens, backbone.text_width, generator=generator)
