"""One image of a stream, and some that lie together."""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any, Protocol
from urllib import request
from urllib.parse import urlsplit

from PIL import Image

from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.vision.images.crops import Hashed
from pbprompt.vision.images.images import read_file
from pbprompt.vision.images.locations import WEB, explained, opened, state

MOST_BYTES = 64 << 20  # of an image file that is held in memory: some are, at once
MOST_WEB_BYTES = 20 << 20  # of an image from the web, which comes by http and https alone
WAIT_SECONDS = 10.0  # for the connection, and for each of its parts
MOST_SECONDS = 60.0  # in all
CHUNK = 1 << 16
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


def read_address(address: str, most_bytes: int) -> bytes:
    """An image file from elsewhere. What the web sends has stricter limits."""
    if address.startswith(WEB):
        return download(address)
    try:
        with explained(address), opened(address) as file:
            content = file.read(most_bytes + 1)
        if len(content) <= most_bytes:
            return content
        raise InputError(f"{address}: the file is larger than {most_bytes >> 20} MiB")
    except InputError as error:
        raise InputError(f"cannot read image {error}") from None


class _Redirects(request.HTTPRedirectHandler):
    """Followed to http and https, and never from https to http."""

    max_redirections = 5

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise InputError(f"cannot read image {req.full_url}: it leads on to {scheme}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """What urllib makes by default opens files and FTP too."""
    opener = request.OpenerDirector()
    ways = (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, _Redirects)
    for handler in (*ways, request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "pbprompt"), ("Accept", "image/*")]
    return opener


def download(address: str) -> bytes:
    """The content at an address, not yet looked at."""
    parts, size, end = [], 0, time.monotonic() + MOST_SECONDS
    try:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError("only http and https are fetched")
        with _opener().open(address, timeout=WAIT_SECONDS) as answer:
            while part := answer.read1(CHUNK):
                size += len(part)
                if size > MOST_WEB_BYTES:
                    raise ValueError(f"larger than {MOST_WEB_BYTES >> 20} MiB")
                if time.monotonic() > end:
                    raise ValueError(f"not there after {MOST_SECONDS:g} seconds")
                parts.append(part)
            if answer.length:  # of what was to come
                raise ValueError(f"cut off, {answer.length:,} bytes are missing")
    except InputError:
        raise
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        why = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise InputError(f"cannot read image {address}: {why}") from None
    return b"".join(parts)
