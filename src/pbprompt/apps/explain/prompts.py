"""The prompts of a model as points in the joint space, and what they mean in captions and in words.

    rank captions t by cos(g_c^(s), g(t)),  g(t) = text tower([SOS] t [EOT])
    rank tokens t by cos(v_j, E_t),  E the frozen token embedding table

By cosine rather than distance: rare tokens have short embeddings, which are near to everything. Learned
vectors v_j need not lie near any word: a low cosine means that the word says little. Whole sentences near the
whole prompt say more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.files import read_text
from pbprompt.learners.fitted import ShowsTokens
from pbprompt.learners.method import Method
from pbprompt.seeding import generator
from pbprompt.vision.images.names import class_rows
from pbprompt.vision.similarity import cosines
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import encode_texts
from pbprompt.vision.towers.tokenizer import AnyTokenizer

Word = tuple[str, float]  # spelling, cosine


@torch.no_grad()
def sampled_prompts(method: Method, samples: int, seed: int) -> Float[Tensor, "s c d"]:
    """`samples` draws of every class's text feature (one where all are the same), as the first backbone has
    it."""
    prompts = method.prompts_of(method.class_features(samples, generator(seed)))
    prompts = prompts[..., : method.backbone.towers[0].embed_dim]
    if not prompts.any():
        raise InputError(f"{method.name} was fitted without class names and has no prompts: fit it with some")
    return prompts[:1] if torch.equal(prompts, prompts[:1].expand_as(prompts)) else prompts


@dataclass(frozen=True)
class PromptCaptions:
    """A sampled prompt's nearest captions with their cosines, nearest first."""

    class_name: str
    sample: int  # from 0
    captions: tuple[Word, ...]
    words: tuple[Word, ...] = ()  # the one nearest to each of its learned tokens, where it has some

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, besides the class."""
        captions, words = (
            [{"text": text, "cosine": round(cosine, 6)} for text, cosine in near]
            for near in (self.captions, self.words)
        )
        return {"prompt": self.sample + 1, "captions": captions, "words": words}


def read_captions(path: Path, tokenizer: AnyTokenizer) -> list[str]:
    """A text file's captions, one per line; blank lines and repetitions are left out."""
    captions: dict[str, None] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        caption = " ".join(line.split())
        if not caption:
            continue
        ids = tokenizer.encode(caption)
        room = tokenizer.context_length - len(tokenizer.enclose([]))
        if not ids:
            raise InputError(f"{path}:{number}: the caption holds no word that the model reads: remove it")
        if len(ids) > room:
            raise InputError(
                f"{path}:{number}: the caption takes {len(ids)} tokens, the model reads {room}: shorten it"
            )
        captions[caption] = None
    if not captions:
        raise InputError(f"{path}: holds no captions: write one per line")
    return list(captions)


@torch.no_grad()
def nearest_captions(
    method: Method,
    captions: Sequence[str],
    names: Sequence[str] | None = None,
    top_k: int = 5,
    samples: int = 4,
    seed: int = 0,
) -> list[PromptCaptions]:
    """The `top_k` nearest captions of each sampled prompt of the named classes (default: of all)."""
    prompts = sampled_prompts(method, samples, seed)
    rows = list(range(len(method.classes))) if names is None else class_rows(method.classes, names)
    similarity = cosines(encode_texts(method.backbone.towers[0], captions), prompts[:, rows])  # [s, n, c]
    found = _nearest(similarity.permute(2, 0, 1).flatten(0, 1), captions, top_k)
    spoken = prompt_words(method, rows, 1, samples, seed)
    places = [(at, sample) for at in range(len(rows)) for sample in range(len(prompts))]
    out = []
    for (at, sample), near in zip(places, found, strict=True):
        tokens = spoken[at][sample % len(spoken[at])]  # draws may share the tokens that were learned
        words = tuple(nearest for nearest, *_ in tokens)
        out.append(PromptCaptions(method.classes[rows[at]], sample, tuple(near), words))
    return out


@torch.no_grad()
def prompt_words(
    method: Method, rows: Sequence[int], top_k: int, samples: int, seed: int
) -> list[list[list[list[Word]]]]:
    """Of every class the nearest words of each token of each of its prompts; none where it has no tokens."""
    none = torch.empty(0)
    vectors = method.prompt_vectors(samples, generator(seed)) if isinstance(method, ShowsTokens) else none
    if not vectors.numel():
        return [[[]] for _ in rows]
    vectors = vectors.expand(-1, len(method.classes), -1, -1)[:, rows].transpose(0, 1)  # [c, s, b, w]
    found = iter(nearest_words(method.backbone, vectors.flatten(0, 2), top_k))
    drawn, tokens = vectors.shape[1:3]
    return [[[next(found) for _ in range(tokens)] for _ in range(drawn)] for _ in rows]


@torch.no_grad()
def nearest_words(backbone: Backbone, vectors: Float[Tensor, "n w"], top_k: int = 5) -> list[list[Word]]:
    """The `top_k` nearest words of each vector with their cosines, nearest first."""
    words = backbone.tokenizer.words()
    ids = torch.tensor(list(words), device=backbone.device)
    similarity = cosines(vectors.to(backbone.device), backbone.token_embedding(ids))
    return _nearest(similarity, list(words.values()), top_k)


def _nearest(similarity: Float[Tensor, "k n"], texts: Sequence[str], top_k: int) -> list[list[Word]]:
    """Of each row the most similar texts, the first of equals first."""
    best = similarity.sort(dim=-1, descending=True, stable=True)
    columns = (part[:, :top_k].tolist() for part in (best.indices, best.values))
    return [
        [(texts[at], value) for at, value in zip(*row, strict=True)] for row in zip(*columns, strict=True)
    ]
