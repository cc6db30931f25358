"""WebDataset tars: files of one name belong together, `0001.jpg` and its label `0001.cls`."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pbprompt.data.images import IMAGE_SUFFIXES
from pbprompt.data.stream.places import Place, opened, state, told
from pbprompt.data.stream.records import MOST_BYTES, Record, too_large
from pbprompt.errors import InputError

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
    """The images of one tar, compressed or not."""

    file: Place
    state: str

    @classmethod
    def at(cls, file: Place) -> "Tar":
        return cls(file, state(file))

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
        with opened(self.file) as file:
            try:
                return sum(is_image(member) for member in _members(self._archive(file)))
            except (tarfile.TarError, OSError, InputError):
                return None

    def records(self, skip: int = 0) -> Iterator[Record]:
        """The images in order. Where the tar is cut off, the last record says so.

        Where a connection is lost, that is raised.
        """
        done = 0
        with opened(self.file) as file, told(self.file):
            try:
                archive = self._archive(file)
                for key, members in _groups(archive, skip):
                    for record in self._records(key, members):
                        done += 1
                        if done > skip:
                            yield record
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

    def _records(self, key: str, members: "list[_Member]") -> Iterator[Record]:
        label = next((text for member in members if (text := _label(member))), "")
        for member in members:
            if not member.image:
                continue
            name = f"{self.file}/{member.name}"
            yield Record(name, too_large(name) if member.content is None else member.content, label)


@dataclass
class _Member:
    name: str
    image: bool
    content: bytes | None  # None: too large, or passed over


def is_image(member: tarfile.TarInfo) -> bool:
    path = PurePosixPath(member.name)
    return member.isfile() and path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        archive.members.clear()  # type: ignore[attr-defined] # which it would keep
        # of a global header, what it said stays
        archive.described = sum(len(key) + len(value) for key, value in archive.pax_headers.items())  # type: ignore[attr-defined]
        yield member


def _groups(archive: tarfile.TarFile, skip: int) -> Iterator[tuple[str, list[_Member]]]:
    """Members of one key that follow one another; what is in the first `skip` images is not read."""
    key, passed, held = "", 0, 0
    group: list[_Member] = []
    for member in _members(archive):
        if not member.isfile():
            continue
        path = PurePosixPath(member.name)
        own = str(path.parent / path.name.split(".")[0])
        if own != key:
            if group:
                yield key, group
            key, group, held = own, [], 0
        image = is_image(member)
        passed += image
        wanted = passed > skip or not image
        most = MOST_BYTES if image else LABEL_BYTES
        file = archive.extractfile(member) if wanted and member.size <= most else None
        held += tarfile.BLOCKSIZE + (0 if file is None else member.size)
        if held > MOST_BYTES:
            raise InputError(f"over {MOST_BYTES >> 20} MiB of files called {own[:60]!r}")
        group.append(_Member(member.name, image, None if file is None else _whole(file, member)))
    if group:
        yield key, group


def _whole(file: IO[bytes], member: tarfile.TarInfo) -> bytes:
    content = file.read()
    if len(content) < member.size:
        raise EOFError
    return content


def _label(member: _Member) -> str:
    """A `.cls` file's text, or the label in a `.json` file."""
    suffix = PurePosixPath(member.name).suffix.lower()
    if member.image or member.content is None or suffix not in (".cls", ".json"):
        return ""
    text = member.content.decode("utf-8", "replace").strip()
    if suffix == ".cls":
        return text
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    found = value.get("label") if isinstance(value, dict) else None
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""
