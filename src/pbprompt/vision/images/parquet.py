"""Parquet files of images: their bytes, a Hugging Face image column, or paths; read a few rows at a time.

All of a file is read in a process of its own, of bounded memory: a few kilobytes may stand for gigabytes, and
only who has unpacked them knows.
"""

import atexit
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pbprompt.errors import InputError, first_line, needing
from pbprompt.vision.images.locations import Place, explained, opened, state
from pbprompt.vision.images.records import FILES_AT_ONCE, MOST_BYTES, Record, too_large
from pbprompt.vision.images.tables import COLUMNS, row_record
from pbprompt.vision.images.workers import Workers

BYTES_AT_ONCE, ROWS_AT_ONCE = 16 << 20, 1024  # of which so many lie in memory
MEMORY = 2 << 30  # of the process that reads

Rows = list[dict[str, Any]]


class Columns(NamedTuple):
    """Which columns hold the image, its label and its split ("": none); `names`: of a Hugging Face dataset's
    classes."""

    image: str
    label: str
    split: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class RowGroups:
    """Some row groups of a file that follow one another, `first` the number of their first row."""

    file: Place
    groups: tuple[int, ...]
    first: int
    rows: int
    columns: Columns
    allow_urls: bool
    state: str

    @property
    def identity(self) -> str:
        return f"{self.file} {self.state} rows {self.first} to {self.first + self.rows}"

    def count(self) -> int:
        return self.rows

    def records(self, skip: int = 0) -> Iterator[Record]:
        while skip < self.rows:
            wanted = tuple(filter(None, self.columns[:3]))
            rows = _apart(self.file, rows_from, self.groups, wanted, skip)
            for row, cells in enumerate(rows, self.first + skip):
                yield self._record(row, cells)
            skip += len(rows)

    def _record(self, row: int, cells: dict[str, Any]) -> Record:
        value, label = cells[self.columns.image], cells.get(self.columns.label)
        if (names := self.columns.names) and isinstance(label, int):
            label = names[label] if 0 <= label < len(names) else None
        label, split = "" if label is None else str(label), str(cells.get(self.columns.split) or "")
        if isinstance(value, dict):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if isinstance(value, str) or value is None:
            fields = {"image": value or "", "label": label, "split": split}
            return row_record(self.file, f"{self.file} row {row}", fields, self.allow_urls)
        name = f"{self.file}#{row}"
        return Record(name, too_large(name) if len(value) > MOST_BYTES else value, label, split)


def row_groups(place: Place, allow_urls: bool) -> Iterator[RowGroups]:
    """The row groups, joined up to about a thousand rows."""
    version = state(place)
    columns, sizes = _apart(place, footer)
    groups: list[int] = []
    first = rows = 0
    for group, size in enumerate(sizes):
        groups.append(group)
        rows += size
        if rows >= FILES_AT_ONCE or group == len(sizes) - 1:
            yield RowGroups(place, tuple(groups), first, rows, columns, allow_urls, version)
            groups, first, rows = [], first + rows, 0


@cache
def _reader() -> Workers:
    """Started once, and kept until the program ends."""
    workers = Workers(1, memory=MEMORY, prepare=__name__)
    atexit.register(workers.close)
    return workers


def _apart(place: Place, function: Callable[..., Any], *given: object) -> Any:
    if str(place).startswith("memory://"):  # which is this process's own
        return function(place, *given)
    try:
        return _reader().ask(function, place, *given)
    except EOFError:
        why = f"it breaks its reader, or takes over {MEMORY >> 30} GiB: write it with smaller images or pages"
        raise InputError(f"{place}: cannot be read: {why}") from None


def footer(place: Place) -> tuple[Columns, list[int]]:
    """The columns, and the rows of each row group."""
    with opened(place) as file, explained(place):
        parquet = _open(place, file)
        sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        return _columns(place, parquet.schema_arrow), sizes


_begun: dict[tuple[Any, ...], Iterator[Rows]] = {}  # what the next question is likely to be, going on


def rows_from(place: Place, groups: tuple[int, ...], columns: tuple[str, ...], row: int) -> Rows:
    """The next rows of the groups, from that one on."""
    batches = _begun.pop((place, groups, columns, row), None)
    _begun.clear()
    batches = batches or _batches(place, list(groups), list(columns), row)
    found = next(batches, [])
    if not found:
        raise InputError(f"{place}: ends before the rows that it says it has: fetch or write it again")
    _begun[place, groups, columns, row + len(found)] = batches
    return found


def _batches(place: Place, groups: list[int], columns: list[str], skip: int) -> Iterator[Rows]:
    with opened(place) as file, explained(place):
        parquet = _open(place, file)
        parts = [parquet.metadata.row_group(group) for group in groups]
        while parts and skip >= parts[0].num_rows:
            skip -= parts.pop(0).num_rows
            groups.pop(0)
        size = max((part.total_byte_size // max(1, part.num_rows) for part in parts), default=0)
        most = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // max(1, size)))
        for batch in parquet.iter_batches(most, row_groups=groups, columns=columns) if groups else ():
            if rows := batch.slice(skip).to_pylist() if skip < len(batch) else []:
                yield rows
            skip = max(0, skip - len(batch))


def _open(place: Place, file: Any) -> Any:
    with needing(f"{place}: Parquet needs pyarrow", "parquet"):
        from pyarrow.parquet import ParquetFile
    try:
        return ParquetFile(file)
    except Exception as error:
        why = first_line(error)
        raise InputError(f"{place}: not a whole Parquet file ({why}): fetch or write it again") from None


def _columns(place: Place, schema: Any) -> Columns:
    """A Hugging Face image column, or else bytes, or else paths; by their names where there are several."""
    from pyarrow import types

    def is_binary(kind: Any) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    def is_struct(kind: Any) -> bool:
        return types.is_struct(kind) and any(part.name == "bytes" and is_binary(part.type) for part in kind)

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return types.is_string(kind) or types.is_large_string(kind)

    def only(is_kind: Callable[[Any], bool], *, named: bool = False) -> list[str]:
        found = [field.name for field in schema if is_kind(field.type)]
        by_name = [name for name in found if name.lower() in COLUMNS["image"]]
        found = by_name or ([] if named else found)
        return found if len(found) == 1 else []

    candidates = [*only(is_struct), *only(is_binary), *only(is_text, named=True)]
    if not candidates:
        raise InputError(
            f"{place}: no image column among {', '.join(schema.names[:10])}: call the one with the "
            "images' bytes or paths `image`"
        )
    image = candidates[0]
    label, split = (
        next((name for name in schema.names if name.lower() in COLUMNS[field] and name != image), "")
        for field in ("label", "split")
    )
    return Columns(image, label, split, _class_names(schema, label))


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """What the `datasets` library calls the numbers of a label column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
