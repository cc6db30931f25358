"""The files below an address, what counts as an image there and here, and what folders say of one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbprompt.data.assemble import SPLIT_WORDS
from pbprompt.data.images import IMAGE_SUFFIXES, looks_like_image
from pbprompt.data.stream.places import Place, filesystem, suffix_of, told
from pbprompt.data.stream.records import Record


def address_files(address: str) -> Iterator[tuple[str, str]]:
    """All files below an address with their paths there, in order; fsspec lists a folder at once."""
    system, path = filesystem(address)
    root = path.rstrip("/")
    return ((system.unstrip_protocol(name), name[len(root) + 1 :]) for name in _below_address(system, root))


def _below_address(system: Any, path: str) -> Iterator[str]:
    with told(system.unstrip_protocol(path)):
        listed = system.ls(path, detail=True)
    found = {
        entry["name"].rstrip("/") + ("/" if entry["type"] == "directory" else "")
        for entry in listed
        if entry["name"].rstrip("/") != path.rstrip("/")  # some list the folder itself
    }
    for name in sorted(found):
        if name.rstrip("/").rsplit("/", 1)[-1].startswith("."):
            continue
        if name.endswith("/"):
            yield from _below_address(system, name.rstrip("/"))
        else:
            yield name


def is_image(place: Place) -> bool:
    """By its suffix; a file here with another one by its first bytes."""
    return suffix_of(place) in IMAGE_SUFFIXES or (isinstance(place, Path) and looks_like_image(place))


class Labels:
    """The class and split of a file from the folders it lies in, as `open_dataset` takes them."""

    def __init__(self, folders: list[str]) -> None:
        """`folders` are the names directly in the root."""
        shown = [name for name in folders if not name.startswith(".")]
        self._splits = {name: SPLIT_WORDS[name.lower()] for name in shown if name.lower() in SPLIT_WORDS}
        several = len(set(self._splits.values())) > 1
        self._depth = 1 if self._splits and (several or len(self._splits) == len(shown)) else 0

    def record(self, name: str, place: Place, relative: str) -> Record:
        parts = relative.split("/")[:-1]
        split = self._splits.get(parts[0], "") if self._depth and parts else ""
        label = parts[self._depth] if len(parts) > self._depth and (split or not self._depth) else ""
        return Record(name, place, label, split)
