"""Images one after another, from ten to ten million: folders, tables, Parquet, tars, here or elsewhere.

    stream = Stream(["photos/", "more.csv", "s3://bucket/shards/*.tar"], allow_urls=True)
    for unit in stream.units():            # in a fixed order; nothing is held but the unit at hand
        for record in unit.records():      # record.name, record.label, record.split
            record.read()                  # the bytes of its image file; InputError where they cannot be had

A `Unit` is some images that lie together: a thousand files, some row groups of a Parquet file, a tar. It can
be pickled, so that another process or machine reads it; `records(skip=n)` goes on after the first n;
`identity` is another text once what it names has changed; `count()` says how many records it has, None where
only reading it would tell.

What is wrong with one image is its own record's error, raised by `read`; what is wrong with the source is
raised at once. Labels are the class folder's name, the table's or Parquet column (with the names that a
Hugging Face dataset gives its numbers), or the tar's `.cls`; "" where there is none.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.files import is_special
from pbprompt.vision.images.locations import (
    WEB,
    Labels,
    Place,
    explained,
    files_in,
    filesystem,
    is_address,
    is_image,
    place_of,
    state,
    subfolders,
)
from pbprompt.vision.images.parquet import row_groups
from pbprompt.vision.images.records import Files, Record, Unit, in_units
from pbprompt.vision.images.tables import TABLES, table_records
from pbprompt.vision.images.tars import Tar

__all__ = ["Files", "Record", "Stream", "Unit", "list_images"]

ARCHIVES = {
    "table": TABLES,
    "parquet": (".parquet", ".pq"),
    "tar": (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"),
}


class Stream:
    """The images behind `sources`: files, folders, globs, tables, Parquet files, tars, addresses of these.

    In a folder, Parquet files and tars stand for the images in them. `allow_urls` lets sources and the rows
    of tables name addresses. Without `archives`, only files that are images themselves count.
    """

    def __init__(
        self, sources: Sequence[str | Path | Record], *, allow_urls: bool = False, archives: bool = True
    ) -> None:
        for source in sources:
            far = isinstance(source, str) and is_address(source) and not source.startswith("file://")
            if far and not allow_urls:
                raise InputError(f"{source}: an address: add --allow-urls to fetch images from elsewhere")
        self.sources, self.allow_urls, self._archives = tuple(sources), allow_urls, archives
        self._few: tuple[Unit, ...] | None = None

    @property
    def names(self) -> list[str]:
        return [one.name if isinstance(one, Record) else str(one) for one in self.sources]

    def units(self) -> Iterator[Unit]:
        """Some images at a time, always in the same order."""
        return iter(self._few) if self._few else in_units(self._found())

    def few(self, most: int) -> tuple[Unit, ...]:
        """All units, which are not listed a second time; none where there are more than `most`."""
        if self._few is None:
            found = tuple(islice(in_units(self._found()), most + 1))
            self._few = found if len(found) <= most else ()
        return self._few

    def records(self) -> Iterator[Record]:
        for unit in self.units():
            yield from unit.records()

    def _found(self) -> Iterator[Record | Unit]:
        for source in self.sources:
            if isinstance(source, Record):
                yield source
                continue
            found = self._source(source if isinstance(source, Path) else place_of(source))
            if (first := next(found, None)) is None:
                raise InputError(f"{source} holds no images: give one with JPEG, PNG, WebP or similar files")
            yield first
            yield from found

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
        elif glob.has_magic(place.split("?")[0]) and not place.startswith(WEB):
            return self._glob(place)
        elif not (self._archive(place) or is_image(place) or place.startswith(WEB)):
            system, path = filesystem(place)
            with explained(place):
                if system.isdir(path):
                    return self._folder(place)
                system.info(path)  # which says why where there is nothing, or nothing for us
        return self._file(place)

    def _archive(self, place: Place) -> str:
        return archive_kind(place) if self._archives else ""

    def _file(self, place: Place) -> Iterator[Record | Unit]:
        match self._archive(place):
            case "table":
                return table_records(place, self.allow_urls)
            case "parquet":
                return row_groups(place, self.allow_urls)
            case "tar":
                return iter([Tar(place, state(place))])
        return iter([Record(str(place), place)])

    def _glob(self, pattern: Place) -> Iterator[Record | Unit]:
        if isinstance(pattern, Path):
            matches = map(Path, glob.glob(str(pattern), recursive=True))  # noqa: PTH207 - Path.glob wants a root
            found: list[Place] = [*sorted(filter(Path.is_file, matches), key=Path.as_posix)]
        else:
            system, path = filesystem(pattern)
            with explained(pattern):
                found = [system.unstrip_protocol(name) for name in sorted(system.glob(path))]
        for place in found:
            if is_image(place) or self._archive(place):
                yield from self._file(place)

    def _folder(self, root: Place) -> Iterator[Record | Unit]:
        """A table in a folder is not read: it may name the images that lie beside it."""
        labels: Labels | None = None
        for place, relative in files_in(root):
            if self._archive(place) in ("parquet", "tar"):
                yield from self._file(place)
            elif is_image(place):
                labels = labels or Labels(subfolders(root))
                yield Record(str(place), place, *labels.of(relative))


def list_images(path_or_glob: str | os.PathLike[str]) -> list[Path]:
    """The images a path names: a file itself, a folder's images at any depth, or the matches of a glob."""
    found = Stream([Path(path_or_glob)], archives=False).records()
    return [record.content for record in found if isinstance(record.content, Path)]


def archive_kind(place: Place) -> str:
    """What holds or lists images, by its name: a "table", "parquet" or "tar"; "" for anything else."""
    name = place.name if isinstance(place, Path) else place.split("?")[0]
    return next((kind for kind, ends in ARCHIVES.items() if name.lower().endswith(ends)), "")
