"""Which photographs of a dataset count as one: series as the user names them, or else found by features."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.series import CHANCE, EVEN, Series, find_series
from pbprompt.model.learn import Bank
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.series import ALIKE, NONE, from_rows, numbered
from pbprompt.vision.similarity import unit

MOST = 8192  # photographs that are compared with each other
HINT = 0.25  # of the photographs look alike and are in no series: the user is asked whether they are of one


def series_of(dataset: Dataset, items: Sequence[Item], bank: Bank, by: str) -> Int[Tensor, " n"] | None:
    """A number for each item's series; None where each is by itself. `by`: what --group says."""
    if by == NONE or dataset.multi_label:
        return None
    if (named := numbered(items)) is not None:
        return torch.tensor(named)
    if by == ALIKE and len(items) > MOST:
        raise InputError(
            f"--group {ALIKE}: compares {MOST:,} photographs at most, and there are {len(items):,}: name the "
            "series (a table's column, folder or exif)"
        )
    if not 1 < len(items) <= MOST:
        return None
    groups = _found_among(dataset, items, bank, EVEN if by == ALIKE else CHANCE).of.clone()
    return groups if len(groups.unique()) < len(groups) else None


def possible_series(dataset: Dataset, items: Sequence[Item], bank: Bank, by: str) -> int:
    """How many photographs may be of one thing, place or moment with others, and are counted by themselves:
    0 where series are named, or where few look so. Classes of many kinds look so too, so nobody but the user
    can say."""
    if by or numbered(items) is not None or not 1 < len(items) <= MOST or dataset.multi_label:
        return 0
    found = _found_among(dataset, items, bank, CHANCE)
    more = found.alike - int(_several(found.of).sum())
    return more if more >= HINT * len(items) else 0


def _found_among(dataset: Dataset, items: Sequence[Item], bank: Bank, chance: float) -> Series:
    features = bank.encode(dataset.root, items)
    images = unit(features.global_.float()).cpu().numpy()
    return _found(images.tobytes(), tuple(features.labels.cpu().tolist()), chance)


@lru_cache(maxsize=4)  # a fit asks for those of the same photographs several times
def _found(images: bytes, labels: tuple[int, ...], chance: float) -> Series:
    features = torch.frombuffer(bytearray(images), dtype=torch.float32).view(len(labels), -1)
    return find_series(features, torch.tensor(labels), chance)


def by_path(dataset: Dataset, bank: Bank, by: str) -> dict[str, str]:
    """The series that features find, of each image that is of one with others: for whoever splits them."""
    groups = None if from_rows(by) else series_of(dataset, dataset.items, bank, by)
    if groups is None:
        return {}
    rows = zip(dataset.items, groups.tolist(), _several(groups).tolist(), strict=True)
    return {item.path: f"{ALIKE} {group}" for item, group, several in rows if several}


def apart_from(
    dataset: Dataset, held_out: list[Item], bank: Bank, by: str
) -> tuple[list[Item], Int[Tensor, " n"] | None]:
    """The held-out items that are of no training item's series, and their series."""
    groups = series_of(dataset, [*dataset.train, *held_out], bank, by) if held_out else None
    if groups is None:
        return held_out, None
    learned, own = groups.tensor_split([len(dataset.train)])
    free = ~torch.isin(own, learned)
    return [item for item, kept in zip(held_out, free.tolist(), strict=True) if kept], own[free]


def series_facts(groups: Int[Tensor, " n"] | None, by: str) -> dict[str, Any]:
    """What `fit` keeps of them: how they were found, how many photographs are of a series of several, and how
    many series there are."""
    facts: dict[str, Any] = {"group": by} if by else {}
    if groups is not None:
        facts |= {"in_series": int(_several(groups).sum()), "series": len(groups.unique())}
    return facts


def _several(groups: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which are of a series of several."""
    _, place, size = groups.unique(return_inverse=True, return_counts=True)
    return size[place] > 1
