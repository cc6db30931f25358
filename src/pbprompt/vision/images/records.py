"""One image of a stream, and some that lie together."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Protocol

from PIL import Image

from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.vision.images.crops import Hashed
from pbprompt.vision.images.images import read_file
from pbprompt.vision.images.locations import read_address, state

MOST_BYTES = 64 << 20  # of an image file that is held in memory: some are, at once
FILES_AT_ONCE = 1024  # of a unit


@dataclass(frozen=True, slots=True)
class Record:
    """An image: what its source calls it, and its bytes, its file, its address, or why it has none.

    One that is open already is its own content, and has no bytes to read.
    """

    name: str
    content: bytes | Path | Hashed | str | Image.Image | InputError
    label: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", as_text(self.name))
        object.__setattr__(self, "label", as_text(self.label))

    def read(self) -> bytes:
        """The bytes of its image file, not looked at."""
        match content := self.content:
            case InputError():
                raise content
            case bytes():
                return content
            case Hashed():
                return content.read()
            case str():
                return read_address(content, MOST_BYTES)
        assert isinstance(content, Path)  # an open image has none
        return read_file(content, MOST_BYTES, self.name)


def too_large(name: str) -> InputError:
    return InputError(f"cannot read image {name}: the file is larger than {MOST_BYTES >> 20} MiB")


class Unit(Protocol):
    @property
    def identity(self) -> str: ...

    def count(self) -> int | None: ...

    def records(self, skip: int = 0) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Files:
    files: tuple[Record, ...]

    @property
    def identity(self) -> str:
        """Of names, sizes and times, not of what is in the files: that would be to read them all."""
        digest = hashlib.sha256()
        for record in self.files:
            digest.update(json.dumps([record.name, record.label, record.split]).encode() + b"\n")
            if isinstance(record.content, bytes):
                digest.update(record.content)
            elif isinstance(record.content, Path):
                with contextlib.suppress(InputError):  # the image itself will say so
                    digest.update(state(record.content).encode())
        return digest.hexdigest()

    def count(self) -> int:
        return len(self.files)

    def records(self, skip: int = 0) -> Iterator[Record]:
        return iter(self.files[skip:])


def in_units(found: Iterable["Record | Unit"]) -> Iterator[Unit]:
    """Files that follow one another as units of so many; other units as they are, in their place."""
    for are_files, some in groupby(found, lambda one: isinstance(one, Record)):
        if are_files:
            while files := tuple(islice(some, FILES_AT_ONCE)):
                yield Files(files)  # type: ignore[arg-type]
        else:
            yield from some  # type: ignore[misc]
