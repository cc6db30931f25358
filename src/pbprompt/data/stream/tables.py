"""Tables that name image files, a row at a time: CSV, TSV and JSONL, here or elsewhere."""

import csv
import io
from collections.abc import Iterator
from typing import IO

from pbprompt.data.assemble import SPLIT_WORDS
from pbprompt.data.download import is_address
from pbprompt.data.stream.places import Place, beside, opened
from pbprompt.data.stream.records import Record
from pbprompt.data.tables import COLUMNS, columns_of, json_objects
from pbprompt.errors import InputError
from pbprompt.files import inside

_NEEDED = f"name a column image ({', '.join(COLUMNS['image'][1:])}), with the images' paths"


def table_records(table: Place, allow_urls: bool) -> Iterator[Record]:
    """The image of each row. A row that names none is its own error; the table's is raised."""
    read = _json_rows if str(table).lower().endswith((".jsonl", ".ndjson")) else _csv_rows
    with opened(table) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            for where, fields in read(table, text):
                yield row_record(table, where, fields, allow_urls)
        except UnicodeDecodeError:
            raise InputError(f"{table}: not UTF-8 text: save it as UTF-8") from None


def _csv_rows(table: Place, text: IO[str]) -> Iterator[tuple[str, dict[str, str]]]:
    first = text.readline()
    found = columns_of(first.rstrip("\r\n"), ("image",))
    if found is None:
        raise InputError(f"{table} line 1: no image column in {first[:60]!r}: {_NEEDED}")
    delimiter, header = found
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            where = f"{table} line {reader.line_num + 1}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) == len(header):
                yield where, {field: cells[place] for place, field in header.items() if field}
            else:
                yield where, {}
    except csv.Error as error:
        raise InputError(f"{table} line {reader.line_num + 1}: {error}: correct the quotes") from None


def _json_rows(table: Place, text: IO[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for number, (where, row) in enumerate(json_objects(str(table), text)):
        if number == 0 and not any(word in row for word in COLUMNS["image"]):
            raise InputError(f"{where}: no image field in it: {_NEEDED}")
        fields = {}
        for field, words in COLUMNS.items():
            cell = next((row[word] for word in words if word in row), None)
            if isinstance(cell, str | int) and not isinstance(cell, bool):
                fields[field] = str(cell)
        yield where, fields


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
        return Record(name, beside(table, inside(name, where)), label, split)
    except InputError as error:
        return Record(name, error, label, split)
