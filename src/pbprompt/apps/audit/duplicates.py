"""Files that hold the same picture: exactly (equal bytes or pixels), or saved again, resized or cropped.

    δ(A, B) = min over windows W of max over blocks of RMS( W(A) − B )      or with A and B exchanged

A and B are small squares in colour, and the difference is in units of their own standard deviation; W(A) is
what a crop of up to a tenth of each side may have left of A. A block is a sixth of each side: two motorcycles
before the same wall differ in some block, however alike the rest.

Candidates are pairs that are alike in features and in outline, found a block of rows at a time; δ decides.
Two images of one motif that were taken apart, as in a burst, are not duplicates.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.similarity import unit

SIDE = 48
COARSE, FINE, BLOCK = 16, 24, 4  # sides at which squares are compared: outlines, windows, blocks of windows
PAIRS_AT_ONCE = 128
SAME = 0.99999  # cosine of one picture with itself, in single precision
FLAT = 1.0  # grey levels of deviation, below which there is nothing to compare


class Bounds(NamedTuple):
    """A pair is a near duplicate if at least this alike in features and outline, and at most so different."""

    cosine: float
    outline: float
    difference: float


# Saved again or resized: features move a lot, pixels hardly. Cropped: the other way round. Chosen on the
# training images of Caltech101 and OxfordPets (docs/look.md).
BOUNDS = (Bounds(cosine=0.6, outline=0.97, difference=0.35), Bounds(cosine=0.93, outline=0.8, difference=0.6))
ROWS_AT_ONCE = 1024
MOST_OF_A_ROW = 16  # candidates: of many alike, each is tied to some, and so all to each other


class Duplicates(NamedTuple):
    """Images of one picture, by row, the first one first; `exact`: equal bytes or pixels."""

    rows: tuple[int, ...]
    exact: bool


class SmallSquare:
    """The whole image, pressed into a small square."""

    size, draft = SIDE, 2 * SIDE  # each side that a decoder must at least give

    def __call__(self, image: Image.Image, key: str = "") -> Image.Image:
        return image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=2.0)


def outlines(squares: UInt8[Tensor, "n 3 side side"]) -> Float[Tensor, "n d"]:
    """Vectors of length 1 (0 for an image of one colour) whose products are correlations at 16 × 16."""
    coarse = F.adaptive_avg_pool2d(squares.float(), COARSE).flatten(1)
    return F.normalize(coarse - coarse.mean(1, keepdim=True), eps=FLAT * coarse.shape[1] ** 0.5)


def differences(squares: UInt8[Tensor, "n 3 side side"], pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
    """δ of each pair: 0 for equal squares, about 0.1 for a file saved again, above 1 for other pictures."""
    if not len(pairs):
        return torch.zeros(0)
    found = []
    for some in pairs.split(PAIRS_AT_ONCE):
        first, second = (squares[some[:, place]].float() for place in (0, 1))
        found.append(torch.minimum(_best_window(first, second), _best_window(second, first)))
    return torch.cat(found)


def _best_window(
    whole: Float[Tensor, "p 3 side side"], part: Float[Tensor, "p 3 side side"]
) -> Float[Tensor, " p"]:
    cut = _cutter()
    small = torch.einsum("ys,pcst,xt->pcyx", cut[0], part, cut[0])
    deviation = ((whole.var((1, 2, 3)) + part.var((1, 2, 3))) / 2).sqrt().clamp(min=FLAT)
    rows = torch.einsum("ays,pcst->pacyt", cut, whole)
    best = part.new_full((len(part),), torch.inf)
    for across in cut:
        windows = torch.einsum("pacyt,xt->pacyx", rows, across)
        squared = (windows - small.unsqueeze(1)).square().mean(2)
        worst = F.avg_pool2d(squared, BLOCK).flatten(2).amax(2).sqrt()
        best = torch.minimum(best, worst.amin(1))
    return best / deviation


def _cutter() -> Float[Tensor, "w fine side"]:
    """Matrices that average the pixels of a line into the cells of each window, the whole line first."""
    edges = torch.arange(SIDE + 1) / SIDE
    found = []
    for length in (1.0, 0.95, 0.9):
        for start in torch.arange(round(40 * (1 - length)) + 1) / 40:
            cells = start + length * torch.linspace(0, 1, FINE + 1)
            low = torch.maximum(cells[:-1, None], edges[None, :-1])
            high = torch.minimum(cells[1:, None], edges[None, 1:])
            found.append((high - low).clamp(min=0) * FINE / length)
    return torch.stack(found)


def twins(dataset: Dataset, split: str, bank: FeatureCache) -> list[str]:
    """Images of a split of which a training image (of `left-out`: another one) has the very features: the
    same picture."""
    alone = split == "left-out"
    items = dataset.train if alone else dataset.whole.split(split)
    if not items or not dataset.train:
        return []
    mine, others = (unit(bank.encode(dataset.root, some).global_.float()) for some in (items, dataset.train))
    same = [((part @ others.T) > SAME).sum(1) > int(alone) for part in mine.split(ROWS_AT_ONCE)]
    return [item.path for item, twin in zip(items, torch.cat(same).tolist(), strict=True) if twin]


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
        for rule in BOUNDS:
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
