"""The files below a folder, here or elsewhere, what counts as an image there, and what folders say of one."""

import heapq
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pbprompt.vision.images.images import IMAGE_SUFFIXES, looks_like_image
from pbprompt.vision.images.locations import Place, explained, filesystem

NAMES_AT_ONCE = 1 << 18  # of one folder; a larger one is gone through again for each so many
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def files_in(root: Place) -> Iterator[tuple[Place, str]]:
    """All files below, each with its path there, in the order of these; hidden ones are left out."""
    return _below(root, "", frozenset())


def _below(folder: Place, prefix: str, above: frozenset[str]) -> Iterator[tuple[Place, str]]:
    real = os.path.realpath(folder) if isinstance(folder, Path) else folder
    if real in above:  # a link to a folder it lies in
        return
    for name in _names(folder):
        place = folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{name}"
        if name.endswith("/"):
            yield from _below(place, prefix + name, above | {real})
        else:
            yield place, prefix + name


def _names(folder: Place) -> Iterator[str]:
    """The names in a folder, sorted, each folder's with a slash: so the paths below come in order too."""
    last = ""
    while True:
        with explained(folder):
            listed = _listed_here(folder) if isinstance(folder, Path) else _listed_there(folder)
            names = (name for name in listed if name > last and not name.startswith("."))
            some = heapq.nsmallest(NAMES_AT_ONCE, names)
        yield from some
        if len(some) < NAMES_AT_ONCE:
            return
        last = some[-1]


def _listed_here(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                yield f"{entry.name}/" if entry.is_dir() else entry.name
            except OSError:  # a link to itself, which is no image either
                yield entry.name


def _listed_there(address: str) -> set[str]:
    """fsspec lists a folder at once."""
    system, path = filesystem(address)
    return {
        entry["name"].rstrip("/").rsplit("/", 1)[-1] + ("/" if entry["type"] == "directory" else "")
        for entry in system.ls(path, detail=True)
        if entry["name"].rstrip("/") != path.rstrip("/")  # some list the folder itself
    }


def subfolders(folder: Place) -> list[str]:
    """The names of the folders directly in a folder, sorted, hidden ones left out."""
    return sorted(name.rstrip("/") for name in _names(folder) if name.endswith("/"))


def is_image(place: Place) -> bool:
    """By its suffix; a file here with another one by its first bytes."""
    path = place if isinstance(place, Path) else Path(place.split("?")[0])
    return path.suffix.lower() in IMAGE_SUFFIXES or (path is place and looks_like_image(path))


UNLABELLED = ("unlabelled", "unlabeled")  # a folder of that name is no class


class Labels:
    """The class and split of a file from the folders it lies in: `<class>/…`, or `<split>/<class>/…`."""

    def __init__(self, folders: Sequence[str]) -> None:
        """`folders` are those directly in the root."""
        self.unlabelled = [name for name in folders if name.lower() in UNLABELLED]
        folders = [name for name in folders if name not in self.unlabelled]
        splits = {name: SPLIT_WORDS[name.lower()] for name in folders if name.lower() in SPLIT_WORDS}
        # A class may itself be called "train": two splits, or nothing but splits, make the folders splits.
        split = splits and (len(set(splits.values())) > 1 or len(splits) == len(folders))
        self.splits = splits if split else {}

    def of(self, relative: str) -> tuple[str, str]:
        """The label, "" outside the class folders, and the split, "" where there are none."""
        parts = relative.split("/")[:-1]
        if parts and parts[0] in self.unlabelled:
            return "", ""
        if not self.splits:
            return parts[0] if parts else "", ""
        split = self.splits.get(parts[0], "") if parts else ""
        return parts[1] if split and len(parts) > 1 else "", split
