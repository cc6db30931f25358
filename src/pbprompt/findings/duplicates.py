"""Files that hold the same picture: exactly (equal bytes or pixels), or saved again, resized or cropped.

Candidates are pairs that are alike in features and in outline, found a block of rows at a time; the pixels
decide (`same_picture.py`). Two images of one motif that were taken apart, as in a burst, are not duplicates.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from pbprompt.core.likelihood import unit
from pbprompt.findings.same_picture import differences, outlines


@dataclass(frozen=True)
class Rule:
    """A pair is a near duplicate if at least this alike in features and outline, and at most so different."""

    cosine: float
    outline: float
    difference: float


# Saved again or resized: features move a lot, pixels hardly. Cropped: the other way round. Chosen on the
# training images of Caltech101 and OxfordPets (docs/look.md).
RULES = (Rule(cosine=0.6, outline=0.97, difference=0.35), Rule(cosine=0.93, outline=0.8, difference=0.6))
ROWS_AT_ONCE = 1024
MOST_OF_A_ROW = 16  # candidates: of many alike, each is tied to some, and so all to each other


@dataclass(frozen=True)
class Duplicates:
    """Images of one picture, by row, the first one first; `exact`: equal bytes or pixels."""

    rows: tuple[int, ...]
    exact: bool


def equal_groups(keys: Sequence[Hashable]) -> list[tuple[int, ...]]:
    """Rows whose key occurs more than once, by key."""
    places: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        places.setdefault(key, []).append(row)
    return [tuple(rows) for rows in places.values() if len(rows) > 1]


def near_pairs(
    features: Float[Tensor, "n d"], squares: UInt8[Tensor, "n 3 side side"]
) -> list[tuple[int, int, float]]:
    """Pairs (i < j) that are near duplicates, with their pixel difference."""
    x, drawn = unit(features), outlines(squares)
    found: dict[tuple[int, int], float] = {}
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        cosine, outline = x[rows] @ x.T, drawn[rows] @ drawn.T
        later = torch.arange(len(x)) > torch.arange(start, start + len(cosine)).unsqueeze(1)
        allowed = torch.zeros_like(cosine)
        for rule in RULES:
            alike = later & (cosine >= rule.cosine) & (outline >= rule.outline)
            allowed = torch.where(alike, allowed.clamp(min=rule.difference), allowed)
        pairs = _most_alike(allowed > 0, outline)
        measured = differences(squares, pairs + torch.tensor([start, 0]))
        limit = allowed[pairs[:, 0], pairs[:, 1]]
        for (i, j), difference, most in zip(pairs.tolist(), measured.tolist(), limit.tolist(), strict=True):
            if difference <= most:
                found[start + i, j] = difference
    return [(i, j, difference) for (i, j), difference in sorted(found.items())]


def _most_alike(candidates: Tensor, outline: Float[Tensor, "b n"]) -> Int[Tensor, "p 2"]:
    """Places of the candidates, of each row the most alike in outline."""
    count = min(MOST_OF_A_ROW, outline.shape[1])
    best = outline.masked_fill(~candidates, -torch.inf).topk(count, dim=1)
    row, place = best.values.isfinite().nonzero(as_tuple=True)
    return torch.stack([row, best.indices[row, place]], 1)


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Groups of rows that pairs tie together, directly or through others."""
    parent = list(range(count))

    def head(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for first, second in pairs:
        low, high = sorted((head(first), head(second)))
        parent[high] = low
    return equal_groups([head(row) for row in range(count)])


def find_duplicates(
    keys: Sequence[Hashable],
    features: Float[Tensor, "n d"],
    squares: UInt8[Tensor, "n 3 side side"],
    same_pixels: Callable[[int, int], bool],
) -> list[Duplicates]:
    """Groups of duplicates; images of one key (a file's hash) are exact ones, and are compared once.

    `same_pixels(i, j)` says whether two files hold the same pixels; asked where the small squares are equal.
    """
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    kept = sorted(first.values())
    index = torch.tensor(kept, dtype=torch.long)
    equal = [(rows[0], row) for rows in equal_groups(keys) for row in rows[1:]]
    near: list[tuple[int, int]] = []
    for i, j, difference in near_pairs(features[index], squares[index]):
        pair = kept[i], kept[j]
        (equal if difference == 0 and same_pixels(*pair) else near).append(pair)
    exact_of = {row: group for group in joined(len(keys), equal) for row in group}
    return [
        Duplicates(group, exact_of.get(group[0]) == group) for group in joined(len(keys), [*equal, *near])
    ]
