"""Tables that list images with their labels, a row at a time: CSV, TSV and JSONL, here or elsewhere.

CSV and TSV have a header `image,label[,split][,domain][,description][,parent]`, JSONL the same fields; what
rows describe is their class, and `parent` is the group that it belongs to. A column `labels` in place of
`label` makes a table multi-label: `beach|dog`, an empty cell for none; an image on several rows has the
labels of all.

Of a stream what is wrong with a row is the error of its image (`table_records`); of a dataset it is raised
(`open_table`).
"""

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pbprompt.errors import InputError
from pbprompt.files import as_name, as_text, cell_text, inside, read_text
from pbprompt.vision.images.build_dataset import (
    SEPARATOR,
    Choices,
    Listed,
    Skipped,
    build_dataset,
    keep_images,
)
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.locations import SPLIT_WORDS, WEB, Place, is_address, opened
from pbprompt.vision.images.records import Record

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
_MISSING = {  # what a header lacks, and what to do, by whether the rows are to be labelled
    False: ("no image column", _NEEDED),
    True: (
        "columns 'image' and 'label' not found",
        "write a header 'image,label', with 'split' and 'domain' if you like",
    ),
}

Fields = dict[str, Any]  # a row's cells by what they are: text, and of JSON whatever it has
Row = tuple[str, Fields | InputError]  # with the place to name where it is wrong


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


def table_rows(table: Place, text: IO[str], labelled: bool, also: str = "") -> Iterator[Row]:
    """Each row; one that does not fit its header is its own error.

    A header must name a column of images and, where the rows are to be `labelled`, one of labels. `also`:
    one more column to read.
    """
    lines = TableLines(table, text)
    if str(table).lower().endswith((".jsonl", ".ndjson")):
        return _json_rows(table, lines, also)
    return _csv_rows(table, lines, labelled, also)


def _csv_rows(table: Place, lines: TableLines, labelled: bool, also: str) -> Iterator[Row]:
    first = next(iter(lines), "").rstrip("\r\n")
    if len(first) > csv.field_size_limit():
        raise InputError(f"{table} line 1: a header of {len(first):,} characters: give a table with columns")
    delimiter, header = _columns(first, labelled, also)
    if not header:
        what, remedy = _MISSING[labelled]
        raise InputError(f"{table} line 1: {what} in {first[:60]!r}: {remedy}")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            lines.next_row()
            where = f"{table} line {reader.line_num + 1}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) == len(header):
                named = zip(header, cells, strict=True)
                yield where, {field: cell_text(cell) for field, cell in named if field}
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


def _json_rows(table: Place, lines: TableLines, also: str) -> Iterator[Row]:
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
        named = {field: next(filter(value.__contains__, words), "") for field, words in COLUMNS.items()}
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
    label, split = fields.get("label", "").strip(), fields.get("split", "").strip().lower()
    shown = name if is_address(name) else as_name(name)
    content: Place | InputError
    if not name:
        content = InputError(f"{where}: the row names no image")
    elif is_address(name) and allow_urls and not name.startswith("file:"):
        content = name
    elif is_address(name):
        content = InputError(f"{where}: {name}: an address, and these were not allowed")
    else:
        try:
            path = inside(name, where, absolute=not isinstance(table, str))
            content = table.parent / path if isinstance(table, Path) else f"{table.rsplit('/', 1)[0]}/{path}"
        except InputError as error:
            content = error
    return Record(shown or where, content, label, SPLIT_WORDS.get(split, ""))


def open_table(path: Path, root: Path | None, choices: Choices) -> Dataset:
    """The dataset of a .csv, .tsv or .jsonl file, with paths relative to `root` or to its own folder."""
    rows, several = list(read_rows(path, choices.group)), is_multi_label(path)
    bare = [] if several else [(row.path, "without a label") for row in rows if not row.key]
    if bare and len(bare) == len(rows):
        raise InputError(f"{path}: every label is empty: give the classes' names in the column `label`")
    notes = [f"--unlabelled {path} learns from the images without a label"] if bare else []
    labelled = [row for row in rows if row.key or several]
    return listed(path, root or path.parent, labelled, several, choices, bare, notes)


def listed(
    path: Path,
    root: Path,
    rows: list[Listed],
    several: bool,
    choices: Choices,
    bare: Sequence[Skipped] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """The dataset of a file's rows, multi-label where there are `several`; `bare`: those without a label."""
    kept, skipped = keep_images(root, _one_an_image(path, rows, several))
    home = root.absolute()
    away = [row.path for row in kept if row.path.startswith("/") and not Path(row.path).is_relative_to(home)]
    if away:
        notes = [*notes, f"{len(away)} images lie outside {as_text(str(root))}, such as {as_text(away[0])}"]
    skipped = [*skipped, *bare]
    dataset = build_dataset(
        path.stem, root, kept, choices, where=str(path), notes=notes, skipped=skipped, several=several
    )
    return dataset if several else replace(dataset, descriptions=_descriptions(rows, dataset.classes))


def _descriptions(rows: list[Listed], classes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Each class that rows describe, with their sentences, each once."""
    known = set(classes)
    sentences: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.description and (label := as_text(row.key)) in known:
            sentences.setdefault(label, {})[" ".join(row.description.split())] = None
    return tuple((label, *found) for label, found in sentences.items())


def _one_an_image(path: Path, rows: list[Listed], several: bool) -> list[Listed]:
    """A row an image, perhaps of several labels; two that contradict each other are an error, as is half a
    split."""
    first: dict[str, Listed] = {}
    for row in rows:
        other = first.setdefault(row.path, row)
        if several and other is not row:
            row = replace(row, key=other.key + SEPARATOR + row.key)
            first[row.path] = other = replace(other, key=row.key)
        if other != row:
            what = "label" if other.key != row.key else "split or domain"
            hint = ", or list both in a column 'labels'" if other.key != row.key else ""
            raise InputError(
                f"{path}: {row.path} is listed twice with a different {what}: keep one line{hint}"
            )
    unsplit = [row for row in rows if not row.split]
    if unsplit and len(unsplit) < len(rows):
        raise InputError(f"{path}: {unsplit[0].path} has no split but others have: give all or none a split")
    return list(first.values())


def is_multi_label(path: Path) -> bool:
    """Whether a table has a column `labels`, and none for a single label (which then is all that counts)."""
    return any("labels" in fields and "label" not in fields for _, fields in islice(_rows(path), 1))


def read_rows(path: Path, group: str = "") -> Iterator[Listed]:
    """The rows of a table of either kind; of a multi-label one, a row's key is its whole cell. `group`: the
    column that names a photograph's series, if any.

    A row without a label has an empty key.
    """
    label = ""
    for where, fields in _rows(path, group):
        label = label or ("labels" if "labels" in fields and "label" not in fields else "label")
        image, key = (_text(fields, name, where) for name in ("image", label))
        others = ("split", "domain", "description", "parent", *([group] if group else []))
        word, domain, description, parent, *series = (_text(fields, name, where, "") for name in others)
        if word and word.lower() not in SPLIT_WORDS:
            raise InputError(f"{where}: split {word.lower()!r} is unknown: write train, val or test")
        split = SPLIT_WORDS.get(word.lower(), "")
        above = (" ".join(parent.split()),) if parent else ()
        image = inside(image, where, absolute=True)
        yield Listed(image, key, split, domain, "".join(series), description, above)


def _rows(path: Path, also: str = "") -> Iterator[tuple[str, Fields]]:
    for where, fields in table_rows(path, io.StringIO(read_text(path), newline=""), labelled=True, also=also):
        if isinstance(fields, InputError):
            raise fields
        yield where, fields


def _text(fields: Fields, field: str, where: str, default: str | None = None) -> str:
    """A cell of JSON may be anything: a whole number is a label, a list several of them."""
    cell = fields.get(field)
    cell = default if cell is None else cell
    if field == "label" and type(cell) is int:
        return str(cell)
    if field == "labels" and isinstance(cell, list):
        if odd := [label for label in cell if not isinstance(label, str) or SEPARATOR in label]:
            shown = json.dumps(odd[0])[:40]
            raise InputError(f"{where}: field 'labels' holds {shown}: give texts without {SEPARATOR!r}")
        cell = SEPARATOR.join(cell)
    if not isinstance(cell, str):
        raise InputError(f"{where}: field {field!r} is {json.dumps(cell)[:40]}: give it as text")
    return cell.strip()
