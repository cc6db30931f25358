"""Tables that name image files, a row at a time: CSV, TSV and JSONL, here or elsewhere."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pbprompt.errors import InputError
from pbprompt.files import as_name, cell_text, inside
from pbprompt.vision.images.stream.folders import SPLIT_WORDS
from pbprompt.vision.images.stream.locations import WEB, Place, is_address, opened
from pbprompt.vision.images.stream.records import Record

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
# What a header, or a JSON object, may call each field.
COLUMNS = {
    "image": ("image", "path", "file", "filename", "file_name", "filepath", "image_path"),
    "label": ("label", "class", "category", "class_name", "classname"),
    "labels": ("labels",),
    "split": ("split", "subset"),
    "domain": ("domain", "style"),
    "description": ("description",),
    "parent": ("parent",),
}
MOST_ROW = 1 << 20  # characters
MOST_WEB = 1 << 30  # of a table from the web, which may go on for ever
_NEEDED = f"name a column image ({', '.join(COLUMNS['image'][1:])}), with the images' paths"
_NO_LABELS = (
    "columns 'image' and 'label' not found",
    "write a header 'image,label', with 'split' and 'domain' if you like",
)

Fields = dict[str, Any]  # a row's cells by what they are: text, and of JSON whatever it has


class TableLines:
    """A table's lines, so many characters of a row at most; of what comes from the web, so many in all."""

    def __init__(self, table: Place, text: IO[str]) -> None:
        self._table, self._text = table, text
        self._row = self._all = 0
        self._most = MOST_WEB if str(table).startswith(WEB) else sys.maxsize

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(MOST_ROW + 1):
            self._row, self._all = self._row + len(line), self._all + len(line)
            if self._row > MOST_ROW:
                raise InputError(f"{self._table}: a row of over {MOST_ROW:,} characters: check the table")
            if self._all > self._most:
                raise InputError(f"{self._table}: over {MOST_WEB >> 20} MiB: fetch it, and give the file")
            yield line

    def next_row(self) -> None:
        """What was read so far was of earlier rows."""
        self._row = 0


def table_rows(
    table: Place, text: IO[str], labelled: bool, also: str = ""
) -> Iterator[tuple[str, Fields | InputError]]:
    """Each row, with the place to name where it is wrong; one that does not fit its header is its own error.

    A header must name a column of images and, where the rows are to be `labelled`, one of labels. `also`:
    one more column to read.
    """
    lines = TableLines(table, text)
    is_json = str(table).lower().endswith((".jsonl", ".ndjson"))
    return _json_rows(table, lines, also) if is_json else _csv_rows(table, lines, labelled, also)


def _csv_rows(
    table: Place, lines: TableLines, labelled: bool, also: str
) -> Iterator[tuple[str, Fields | InputError]]:
    first = next(iter(lines), "").rstrip("\r\n")
    if len(first) > csv.field_size_limit():
        raise InputError(f"{table} line 1: a header of {len(first):,} characters: give a table with columns")
    delimiter, header = _columns(first, labelled, also)
    if not header:
        missing = _NO_LABELS if labelled else ("no image column", _NEEDED)
        raise InputError(f"{table} line 1: {missing[0]} in {first[:60]!r}: {missing[1]}")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            lines.next_row()
            where = f"{table} line {reader.line_num + 1}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) == len(header):
                yield (
                    where,
                    {field: cell_text(cell) for field, cell in zip(header, cells, strict=True) if field},
                )
            else:
                count = f"{len(cells)} fields where the header has {len(header)}"
                yield where, InputError(f"{where}: {count}: quote fields that contain the separator")
    except csv.Error as error:
        raise InputError(f"{table} line {reader.line_num + 1}: {error}: correct the quotes") from None


def _columns(first: str, labelled: bool, also: str) -> tuple[str, list[str]]:
    """The separator, by what it makes of the header, and the field of each column, "" if none of ours.

    No fields at all where what is needed has no column.
    """
    for delimiter in ("\t", ";", ","):
        header: list[str] = []
        for cell in next(csv.reader([first], delimiter=delimiter), []):
            word = cell.strip().lower()
            other = also if word == also.lower() else ""
            field = next((field for field, words in COLUMNS.items() if word in words), other)
            header.append("" if field in header else field)
        if "image" in header and (not labelled or "label" in header or "labels" in header):
            return delimiter, header
    return "", []


def _json_rows(table: Place, lines: TableLines, also: str) -> Iterator[tuple[str, Fields]]:
    """The fields that each line's object has."""
    for number, line in enumerate(lines, start=1):
        lines.next_row()
        if not line.strip():
            continue
        where = f"{table} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error}): write one object per line") from None
        if not isinstance(value, dict):
            raise InputError(f'{where}: not an object: write {{"image": "cats/1.jpg", "label": "cat"}}')
        named = {
            field: next((word for word in words if word in value), "") for field, words in COLUMNS.items()
        }
        named[also] = also if also in value else ""
        yield where, {field: value[word] for field, word in named.items() if word}


def table_records(table: Place, allow_urls: bool) -> Iterator[Record]:
    """The image of each row. A row that names none is its own error; the table's is raised."""
    with opened(table) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            rows = table_rows(table, text, labelled=False)
            for number, (where, fields) in enumerate(rows):
                if isinstance(fields, InputError):
                    fields = {}
                elif number == 0 and "image" not in fields:
                    raise InputError(f"{where}: no image field in it: {_NEEDED}")
                texts = {field: str(cell) for field, cell in fields.items() if type(cell) in (str, int)}
                yield row_record(table, where, texts, allow_urls)
        except UnicodeDecodeError:
            raise InputError(f"{table}: not UTF-8 text: save it as UTF-8") from None


def row_record(table: Place, where: str, fields: dict[str, str], allow_urls: bool) -> Record:
    """What a row names: a file beside the table or, where that is allowed, an address."""
    name = fields.get("image", "").strip()
    split = SPLIT_WORDS.get(fields.get("split", "").strip().lower(), "")
    label = fields.get("label", "").strip()
    if not name:
        return Record(where, InputError(f"{where}: the row names no image"), label, split)
    if is_address(name):
        why = InputError(f"{where}: {name}: an address, and these were not allowed")
        return Record(name, name if allow_urls and not name.startswith("file:") else why, label, split)
    try:
        path = inside(name, where, absolute=not isinstance(table, str))
        there = table.parent / path if isinstance(table, Path) else f"{table.rsplit('/', 1)[0]}/{path}"
        return Record(as_name(name), there, label, split)
    except InputError as error:
        return Record(as_name(name), error, label, split)
