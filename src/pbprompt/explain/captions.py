"""Which captions say what a sampled prompt means?

    rank captions t by cos(g_c^(s), g(t)),  g(t) = text tower([SOS] t [EOT])

The nearest words of learned vectors seldom make sense; whole sentences near the whole prompt do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pbprompt.clip.engine import encode_texts
from pbprompt.clip.prompts import AnyTokenizer
from pbprompt.core.likelihood import cosines
from pbprompt.errors import InputError
from pbprompt.explain.sampled import class_rows, sampled_prompts
from pbprompt.files import read_text
from pbprompt.methods.base import Method


@dataclass(frozen=True)
class PromptCaptions:
    """A sampled prompt's nearest captions with their cosines, nearest first."""

    class_name: str
    sample: int  # from 0
    captions: tuple[tuple[str, float], ...]


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
    rows = range(len(method.classes)) if names is None else class_rows(method.classes, names)
    similarity = cosines(encode_texts(method.backbone, captions), prompts[:, rows]).transpose(
        1, 2
    )  # [s, c, n]
    best = similarity.sort(dim=-1, descending=True, stable=True)
    found = []
    for place, row in enumerate(rows):
        for sample in range(len(prompts)):
            values = best.values[sample, place, :top_k].tolist()
            order = best.indices[sample, place, :top_k].tolist()
            pairs = tuple((captions[at], value) for at, value in zip(order, values, strict=True))
            found.append(PromptCaptions(method.classes[row], sample, pairs))
    return found
