"""The files below a folder, here or elsewhere, what counts as an image there, and what folders say of one."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pbprompt.data.images import IMAGE_SUFFIXES, looks_like_image
from pbprompt.data.stream.places import Place, filesystem, suffix_of, told
from pbprompt.errors import InputError

NAMES_AT_ONCE = 1 << 18  # of one folder; a larger one is gone through again for each so many
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def files_in(root: Place) -> Iterator[tuple[Place, str]]:
    """All files below, each with its path there, in the order of these; hidden ones are left out."""
    with told(root):
        if isinstance(root, Path):
            yield from ((path, path.relative_to(root).as_posix()) for path in files_below(root))
        else:
            system, path = filesystem(root)
            start = len(path.rstrip("/")) + 1
            for name in _below_address(system, path.rstrip("/")):
                yield system.unstrip_protocol(name), name[start:]


def files_below(folder: Path) -> Iterator[Path]:
    """All files below, through links, sorted by relative path as text, with few names in memory at once."""
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
                name = f"{entry.name}/" if _is_folder(entry) else entry.name
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


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which is no image either
        return False


def _below_address(system: Any, path: str) -> Iterator[str]:
    """fsspec lists a folder at once."""
    for name in _listed(system, path):
        if name.endswith("/"):
            yield from _below_address(system, name.rstrip("/"))
        else:
            yield name


def _listed(system: Any, path: str) -> list[str]:
    """What is in a folder, sorted, each folder's name with a slash; hidden ones are left out."""
    with told(system.unstrip_protocol(path)):
        listed = system.ls(path, detail=True)
    found = {
        entry["name"].rstrip("/") + ("/" if entry["type"] == "directory" else "")
        for entry in listed
        if entry["name"].rstrip("/") != path.rstrip("/")  # some list the folder itself
    }
    return sorted(name for name in found if not name.rstrip("/").rsplit("/", 1)[-1].startswith("."))


def subfolders(folder: Place) -> list[str]:
    """The names of the folders directly in a folder, sorted, hidden ones left out."""
    if not isinstance(folder, Path):
        names = _listed(*filesystem(folder))
        return [name.rstrip("/").rsplit("/", 1)[-1] for name in names if name.endswith("/")]
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}: give a folder that can be read") from None
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def is_image(place: Place) -> bool:
    """By its suffix; a file here with another one by its first bytes."""
    return suffix_of(place) in IMAGE_SUFFIXES or (isinstance(place, Path) and looks_like_image(place))


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
