"""Prompts as token sequences in which some positions are slots for learned vectors."""

from collections.abc import Sequence
from typing import Literal

from pbprompt.clip.tokenizer import Tokenizer
from pbprompt.errors import InputError

NamePosition = Literal["end", "middle", "front"]

# A prompt is a list of ints: a token id, or −(k+1) where the k-th context vector goes.
Prompt = list[int]


def named_prompts(
    tokenizer: Tokenizer,
    names: Sequence[str],
    context: int,
    position: NamePosition = "end",
    ending: str = ".",
) -> list[Prompt]:
    """[SOS] context and name in the wanted order, the ending [EOT], for each class name.

    end: context, name; front: name, context; middle: half the context, name, the other half.
    """
    before = {"end": context, "middle": context // 2, "front": 0}[position]
    slots = [-(k + 1) for k in range(context)]
    stop = tokenizer.encode(ending)
    prompts = []
    for name in names:
        tokens = tokenizer.encode(name.replace("_", " "), specials=False)
        if not tokens:
            raise InputError(f"class name {name!r} holds no token: give every class a name")
        body = [*slots[:before], *tokens, *slots[before:], *stop]
        prompts.append(_enclosed(tokenizer, body, f"class name {name!r} with {context} context vectors"))
    return prompts


def text_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Prompt]:
    """[SOS] text [EOT], for each text; no slots."""
    return [_enclosed(tokenizer, tokenizer.encode(text, specials=False), f"text {text!r}") for text in texts]


def _enclosed(tokenizer: Tokenizer, body: list[int], what: str) -> Prompt:
    prompt = [tokenizer.sos, *body, tokenizer.eot]
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
