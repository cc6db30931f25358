"""Classes in groups, and groups in wider ones: an answer may be a group where no class is sure enough.

A file says of each class, and of a group within another, what it belongs to. Level 0 are the classes; a
group is of the level above the highest group in it, so that no group holds another one of its level. The
probability of a group is the sum over its classes. What of all classes is one group, or holds a single one,
says nothing and is left out.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from pbprompt.errors import InputError, suggest
from pbprompt.vision.images.names import name_key, read_classes_file

Pairs = tuple[tuple[str, str], ...]  # a class or group, and the group that it belongs to


class Level(NamedTuple):
    """Groups that are as far above their classes."""

    names: tuple[str, ...]
    members: Bool[NDArray[np.bool_], "c g"]

    def likeliest(
        self, probabilities: Float[NDArray[np.float64], "n c"]
    ) -> tuple[Float[NDArray[np.float64], " n"], Int[NDArray[np.int64], " n"]]:
        """The probability of the likeliest group of each image, and its place among the names."""
        sums = np.minimum(np.round(probabilities @ self.members, 6), 1.0)
        return sums.max(1), sums.argmax(1)


def read_hierarchy(path: Path, classes: Sequence[str]) -> dict[str, str]:
    """What each class and group belongs to: two columns, or lines `class: group`."""
    return checked_hierarchy(read_classes_file(path, "group"), classes, str(path))


def checked_hierarchy(given: Mapping[str, str], classes: Sequence[str], path: str) -> dict[str, str]:
    """With classes as they are spelt; refused where it is none, or says nothing. `path`: where it is from."""
    known = {name_key(name): name for name in classes}
    found = {known.get(name_key(name), name): group for name, group in given.items()}
    for name, group in found.items():
        if name not in classes and name not in found.values():
            raise InputError(f"{path}: no class is called {name!r}: {suggest(name, classes)}")
        if name_key(group) in known:
            raise InputError(f"{path}: {group!r} is a class, to which {name!r} cannot belong: name the group")
        above = [name]
        while (parent := found.get(above[-1])) is not None:
            if parent in above:
                raise InputError(f"{path}: {parent!r} belongs to itself: take one of the lines out")
            above.append(parent)
    if not levels(tuple(found.items()), tuple(classes)):
        raise InputError(f"{path}: no group holds several classes, but not all: nothing is gained by it")
    return found


@lru_cache(maxsize=8)
def levels(hierarchy: Pairs, classes: tuple[str, ...]) -> tuple[Level, ...]:
    """From the narrowest groups to the widest."""
    parents, above = dict(hierarchy), []
    for name in classes:
        chain: list[str] = []
        while (parent := parents.get(chain[-1] if chain else name)) is not None:
            chain.append(parent)
        above.append(chain)
    held = {group: np.array([group in chain for chain in above]) for chain in above for group in chain}
    kept = [[group for group in chain if 1 < held[group].sum() < len(classes)] for chain in above]
    found = []
    height = {group: 0 for chain in kept for group in chain}  # or a wide group would hide narrower ones
    for chain in kept:
        height |= {group: max(height[group], at) for at, group in enumerate(chain)}
    for level in range(max(map(len, kept), default=0)):
        names = tuple(group for group, at in height.items() if at == level)
        found.append(Level(names, np.stack([held[name] for name in names], axis=1)))
    return tuple(found)


def holds(answer: str, true: str, hierarchy: Pairs) -> bool:
    """Whether a class or group is that class, or one that it belongs to."""
    parents, at = dict(hierarchy), true
    while at != answer and at in parents:
        at = parents[at]
    return at == answer


def backed_off(
    probabilities: Float[NDArray[np.float64], "n c"],
    classes: tuple[str, ...],
    thresholds: Sequence[float],
    hierarchy: Pairs,
) -> NDArray[np.object_]:
    """The class of each image or else its narrowest group that reaches the threshold of its level, with its
    probability; ("", 0.0) where none does."""
    found = np.empty(len(probabilities), dtype=object)
    found[:] = [("", 0.0)] * len(found)
    steps = [(classes, (probabilities.max(1), probabilities.argmax(1)))]
    steps += [(level.names, level.likeliest(probabilities)) for level in levels(hierarchy, classes)]
    for (names, (score, place)), threshold in reversed(list(zip(steps, thresholds, strict=False))):
        for row in np.flatnonzero((score >= threshold) & (score > 0)).tolist():
            found[row] = (names[place[row]], float(score[row]))
    return found
