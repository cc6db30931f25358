"""`Stream`: what paths, globs and addresses name, whatever their kinds, one after another."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from pbprompt.data.download import is_address
from pbprompt.data.stream.folders import Labels, address_files, is_image
from pbprompt.data.stream.parquet import row_groups
from pbprompt.data.stream.places import Place, filesystem, place_of, suffix_of, told
from pbprompt.data.stream.records import Record, Unit, in_units
from pbprompt.data.stream.tables import table_records
from pbprompt.data.stream.tars import Tar
from pbprompt.data.walk import files_below
from pbprompt.errors import InputError
from pbprompt.files import is_special

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
PARQUETS = (".parquet", ".pq")
TARS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


class Stream:
    """The images behind `sources`: files, folders, globs, tables, Parquet files, tars, addresses of these.

    In a folder, Parquet files and tars stand for the images in them. `allow_urls` lets sources and the rows
    of tables name addresses.
    """

    def __init__(self, sources: Sequence[str | Path | Record], *, allow_urls: bool = False) -> None:
        for source in sources:
            if isinstance(source, str) and is_address(source) and not (allow_urls or _is_here(source)):
                raise InputError(f"{source}: an address, which is fetched only where that is allowed")
        self.sources, self.allow_urls = tuple(sources), allow_urls

    def units(self) -> Iterator[Unit]:
        """Some images at a time, always in the same order."""
        return in_units(self._found())

    def records(self) -> Iterator[Record]:
        """One image after another."""
        for unit in self.units():
            yield from unit.records()

    def _found(self) -> Iterator[Record | Unit]:
        for source in self.sources:
            if isinstance(source, Record):
                yield source
                continue
            none = True
            for one in self._source(source if isinstance(source, Path) else place_of(source)):
                none = False
                yield one
            if none:
                raise InputError(f"{source} holds no images: give one with JPEG, PNG, WebP or similar files")

    def _source(self, place: Place) -> Iterator[Record | Unit]:
        if isinstance(place, Path):
            if place.is_dir():
                return self._folder(place)
            if glob.has_magic(str(place)) and not place.exists():
                return self._glob(place)
            if not place.exists() and not is_special(place):
                raise InputError(
                    f"{place} does not exist: give an image, a folder of images or a glob such as 'in/*.jpg'"
                )
            return self._file(place)
        if glob.has_magic(place.split("?")[0]) and not place.startswith(("http://", "https://")):
            return self._glob(place)
        if _is_archive(place) or is_image(place) or place.startswith(("http://", "https://")):
            return self._file(place)
        system, path = filesystem(place)
        with told(place):
            if system.isdir(path):
                return self._folder(place)
            system.info(path)  # which says why where there is nothing, or nothing for us
            return self._file(place)

    def _file(self, place: Place) -> Iterator[Record | Unit]:
        if suffix_of(place) in TABLES:
            yield from table_records(place, self.allow_urls)
        elif suffix_of(place) in PARQUETS:
            yield from row_groups(place, self.allow_urls)
        elif _is_tar(place):
            yield Tar.at(place)
        else:
            yield Record(str(place), place)

    def _glob(self, pattern: Place) -> Iterator[Record | Unit]:
        if isinstance(pattern, Path):
            matches = map(Path, glob.glob(str(pattern), recursive=True))  # noqa: PTH207 - Path.glob wants a root
            found: list[Place] = [*sorted(filter(Path.is_file, matches), key=Path.as_posix)]
        else:
            system, path = filesystem(pattern)
            with told(pattern):
                found = [system.unstrip_protocol(name) for name in sorted(system.glob(path))]
        for place in found:
            if _is_archive(place) or is_image(place):
                yield from self._file(place)

    def _folder(self, root: Place) -> Iterator[Record | Unit]:
        """A table in a folder is not read: it may name the images that lie beside it."""
        labels: Labels | None = None
        for place, relative in _files(root):
            if suffix_of(place) in PARQUETS or _is_tar(place):
                yield from self._file(place)
            elif is_image(place):
                labels = labels or Labels(_folders_in(root))
                yield labels.record(str(place), place, relative)


def _files(root: Place) -> Iterator[tuple[Place, str]]:
    with told(root):
        if isinstance(root, Path):
            yield from ((path, path.relative_to(root).as_posix()) for path in files_below(root))
        else:
            yield from address_files(root)


def _is_here(source: str) -> bool:
    return source.startswith("file://")


def _is_tar(place: Place) -> bool:
    return str(place).split("?")[0].lower().endswith(TARS)


def _is_archive(place: Place) -> bool:
    return suffix_of(place) in (*TABLES, *PARQUETS) or _is_tar(place)


def _folders_in(root: Place) -> list[str]:
    if isinstance(root, Path):
        return [entry.name for entry in root.iterdir() if entry.is_dir()]
    system, path = filesystem(root)
    with told(root):
        listed = system.ls(path, detail=True)
    return [e["name"].rstrip("/").rsplit("/", 1)[-1] for e in listed if e["type"] == "directory"]
