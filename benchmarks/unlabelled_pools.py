"""Photographs without labels: what a draw leaves of the training split, and what may come instead.

`plain` is all that is left. `zipf`: classes of sizes 1, 1/2, 1/3, … of the largest one; `dirichlet`: of sizes
of chance (α = 1). `foreign30`, `foreign50`: another dataset's photographs are so many per cent. `half`: of
half of the classes alone. `twenty`: so many photographs.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.problems import Labelled, Problem

FOREIGN = {
    "caltech101": "oxford_pets",
    "oxford_pets": "flowers102",
    "flowers102": "grocery:photo",
    "grocery:photo": "oxford_pets",
    "sample": "flowers102",
    "pacs": "flowers102",
}


def drawn(given: Problem, shots: int, seed: int) -> tuple[Labelled, Labelled]:
    """So many photographs per class, and all others."""
    places = torch.arange(len(given.train.labels))
    numbered = given._replace(train=Labelled(places.unsqueeze(1), given.train.labels))
    chosen = numbered.draw(shots, seed).images.squeeze(1)
    rest = places[~torch.isin(places, chosen)]
    few, many = (Labelled(given.train.images[rows], given.train.labels[rows]) for rows in (chosen, rest))
    return few, many


def skewed(
    labels: Int[Tensor, " n"], profile: Float[Tensor, " k"], chance: torch.Generator
) -> Int[Tensor, " m"]:
    """Rows of chance, so many of each class as its profile says; the largest class has all it has."""
    have = labels.bincount(minlength=len(profile))
    profile = profile * (have > 0)
    wanted = (have[profile.argmax()] * profile / profile.max()).round()
    rows = torch.randperm(len(labels), generator=chance)
    rows = rows[labels[rows].argsort(stable=True)]
    place = torch.arange(len(rows)) - (have.cumsum(0) - have)[labels[rows]]
    return rows[place < wanted[labels[rows]]]


def zipf(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, " k"]:
    """1/rank, the largest class first."""
    order = labels.bincount(minlength=classes).argsort(descending=True, stable=True)
    return (order.argsort() + 1).double().reciprocal()


def pools(given: Problem, rest: Labelled, other: Float[Tensor, "f d"], seed: int) -> dict[str, Tensor]:
    """By name; `other`: photographs of another dataset."""
    chance, classes, (images, labels) = torch.Generator().manual_seed(seed), len(given.classes), rest

    def some(count: int, of: Tensor) -> Tensor:
        return of[torch.randperm(len(of), generator=chance)[:count]]

    by_chance = torch.empty(classes).double().exponential_(generator=chance)
    half = some(classes // 2, torch.arange(classes))
    found = {
        "plain": images,
        "zipf": images[skewed(labels, zipf(labels, classes), chance)],
        "dirichlet": images[skewed(labels, by_chance, chance)],
    }
    for percent in (30, 50):
        odds = percent / (100 - percent)
        own = min(len(images), int(len(other) / odds))
        found[f"foreign{percent}"] = torch.cat([some(own, images), some(round(own * odds), other)])
    return found | {"half": images[torch.isin(labels, half)], "twenty": some(20, images)}
