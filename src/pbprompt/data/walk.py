"""A folder's files at any depth, in the order of their paths, with few of its names in memory at once."""

import os
from collections.abc import Iterator
from pathlib import Path

NAMES_AT_ONCE = 1 << 18  # of one folder; a larger one is gone through again for each so many


def files_below(folder: Path) -> Iterator[Path]:
    """All files below, through links, sorted by relative path as text; hidden ones are left out."""
    return (folder / name for name in _below(folder, "", frozenset()))


def _below(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in above:  # a link to a folder it lies in
        return
    for name in _names(folder):
        if name.endswith("/"):
            yield from _below(folder / name, prefix + name, above | {real})
        else:
            yield prefix + name


def _names(folder: Path) -> Iterator[str]:
    """The names in a folder, sorted, each folder's with a slash: so the paths below come in order too."""
    last, full = "", True
    while full:
        some: list[str] = []
        full = False
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = f"{entry.name}/" if entry.is_dir() else entry.name
                if name > last:
                    some.append(name)
                if len(some) >= 2 * NAMES_AT_ONCE:
                    some.sort()
                    del some[NAMES_AT_ONCE:]
                    full = True
        some.sort()
        if full:
            del some[NAMES_AT_ONCE:]
        yield from some
        last = some[-1] if some else last
