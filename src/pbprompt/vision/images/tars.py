"""WebDataset tars: files of one name belong together, `0001.jpg` and its label `0001.cls`."""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pbprompt.errors import InputError
from pbprompt.vision.images.images import IMAGE_SUFFIXES
from pbprompt.vision.images.locations import Place, explained, opened
from pbprompt.vision.images.records import MOST_BYTES, Record, too_large

LABEL_BYTES = 1 << 16
HEADER_BYTES = 1 << 20  # of what describes one file (long names, pax), which tarfile holds in memory
_DESCRIBING = b"xgXLK"  # types: pax, global pax, Solaris's, long names, long links
_CUT_OFF = ("end of data", "empty", "truncated")  # in what tarfile says


class _Header(tarfile.TarInfo):
    """Remembers that the archive's end was met: without it the file is cut off. Refuses what tarfile would
    read into memory without a bound: long descriptions, and maps of sparse files."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.ended = True  # type: ignore[attr-defined]
            raise

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise InputError(f"{self.name[:60]!r} is sparse")
        if self.type in _DESCRIBING:
            so_far = getattr(tarfile_, "described", 0) + tarfile.BLOCKSIZE + self.size
            if so_far > HEADER_BYTES:
                raise InputError(f"a header of over {HEADER_BYTES >> 20} MiB")
            tarfile_.described = so_far  # type: ignore[attr-defined]
        return super()._proc_member(tarfile_)  # type: ignore[misc]

    def _proc_gnusparse_10(self, *_: Any) -> None:
        raise InputError(f"{self.name[:60]!r} is sparse")


@dataclass(frozen=True)
class Tar:
    file: Place
    state: str

    @property
    def identity(self) -> str:
        return f"{self.file} {self.state}"

    @property
    def _plain(self) -> bool:
        """Whether headers can be gone through without what is between them."""
        return isinstance(self.file, Path) and self.file.suffix.lower() == ".tar"

    def count(self) -> int | None:
        if not self._plain:
            return None
        with opened(self.file) as file, contextlib.suppress(tarfile.TarError, OSError, InputError):
            return sum(is_image(member) for member in _members(self._archive(file)))
        return None

    def records(self, skip: int = 0) -> Iterator[Record]:
        """The images in order. Where the tar is cut off, the last record says so.

        Where a connection is lost, that is raised.
        """
        done = 0
        with opened(self.file) as file, explained(self.file):
            try:
                archive = self._archive(file)
                for name, content, label in _images(archive, skip):
                    done += 1
                    if done > skip:
                        name = f"{self.file}/{name}"
                        yield Record(name, too_large(name) if content is None else content, label)
                if not getattr(archive, "ended", False):
                    raise EOFError
            except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError, InputError) as error:
                # of gzip, bz2 and lzma too
                if isinstance(error, OSError) and not isinstance(self.file, Path):
                    raise  # the way there broke off, and nobody knows what is in the rest
                cut = not str(error) or any(word in str(error) for word in _CUT_OFF)
                why = "cut off" if cut else f"damaged ({error})"
                why = f"refused ({error})" if isinstance(error, InputError) else why
                message = f"{self.file}: {why} after {done:,} images: fetch or write it again"
                yield Record(str(self.file), InputError(message))

    def _archive(self, file: IO[bytes]) -> tarfile.TarFile:
        return tarfile.open(fileobj=file, mode="r:" if self._plain else "r|*", tarinfo=_Header)


def is_image(member: tarfile.TarInfo) -> bool:
    path = PurePosixPath(member.name)
    return member.isfile() and path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        archive.members.clear()  # type: ignore[attr-defined] # which it would keep
        # of a global header, what it said stays
        archive.described = sum(len(key) + len(value) for key, value in archive.pax_headers.items())  # type: ignore[attr-defined]
        yield member


def _key(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    return str(path.parent / path.name.split(".")[0])


def _images(archive: tarfile.TarFile, skip: int) -> Iterator[tuple[str, bytes | None, str]]:
    """Each image's name, content and label, which is in a file of its key that lies beside it.

    Content is None where it is too large, and of the first `skip` images, which are not read.
    """
    passed = 0
    for key, members in groupby(filter(tarfile.TarInfo.isfile, _members(archive)), _key):
        label, held = "", 0
        images: list[tuple[str, bytes | None]] = []
        for member in members:
            image = is_image(member)
            passed += image
            wanted = member.size <= (MOST_BYTES if image else LABEL_BYTES) and (passed > skip or not image)
            held += tarfile.BLOCKSIZE + (member.size if wanted else 0)
            if held > MOST_BYTES:
                raise InputError(f"over {MOST_BYTES >> 20} MiB of files called {key[:60]!r}")
            content = _content(archive, member) if wanted else None
            if image:
                images.append((member.name, content))
            elif content is not None:
                label = label or _label(member.name, content)
        yield from ((name, content, label) for name, content in images)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) < member.size:
        raise EOFError
    return content


def _label(name: str, content: bytes) -> str:
    """A `.cls` file's text, or the label in a `.json` file."""
    suffix, text = PurePosixPath(name).suffix.lower(), content.decode("utf-8", "replace").strip()
    if suffix == ".json":
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            return ""
        found = value.get("label") if isinstance(value, dict) else None
        return str(found) if type(found) in (str, int) else ""
    return text if suffix == ".cls" else ""
