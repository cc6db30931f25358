"""Tables of images: CSV and TSV with a header `image,label[,split][,domain]`, JSONL with the same fields.

A column `labels` in place of `label` makes it multi-label, as `beach|dog` (`data/multi_label.py`).
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pbprompt.data.assemble import SPLIT_WORDS, Choices, Row, assemble, keep_images
from pbprompt.data.items import Dataset
from pbprompt.errors import InputError
from pbprompt.files import inside, read_text

# What a header may call each field.
COLUMNS = {
    "image": ("image", "path", "file", "filename", "file_name", "filepath", "image_path"),
    "label": ("label", "class", "category", "class_name", "classname"),
    "labels": ("labels",),
    "split": ("split", "subset"),
    "domain": ("domain", "style"),
}
_NEEDED = "a header 'image,label', with 'split' and 'domain' if you like"
SEPARATOR = "|"  # between the labels of an image
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")


def open_table(path: Path, root: Path | None, choices: Choices) -> Dataset:
    """The dataset of a .csv, .tsv or .jsonl file, with paths relative to `root` or to its own folder."""
    root = root or path.parent
    rows = _distinct(path, list(read_rows(path)))
    kept, skipped = keep_images(root, rows)
    return assemble(path.stem, root, kept, choices, where=str(path), skipped=skipped)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a table of either kind; of a multi-label one, a row's key is its whole cell."""
    return read_jsonl(path) if _is_jsonl(path) else read_csv(path)


def is_multi_label(path: Path) -> bool:
    """Whether a table has a column `labels`, and none for a single label (which then is all that counts)."""
    if not _is_jsonl(path):
        return "labels" in _header(path, read_text(path))[1].values()
    first = next((value for _, value in _objects(path)), {})
    return "labels" in first and "label" not in first


def _is_jsonl(path: Path) -> bool:
    return path.suffix.lower() in (".jsonl", ".ndjson")


def read_csv(path: Path) -> Iterator[Row]:
    """The rows of a CSV or TSV file (a comma, semicolon or tab between fields: the header decides)."""
    text = read_text(path)
    delimiter, header = _header(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            where = f"{path} line {reader.line_num}"
            if cells and reader.line_num > 1 and any(cell.strip() for cell in cells):
                if len(cells) != len(header):
                    raise InputError(
                        f"{where}: {len(cells)} fields where the header has {len(header)}: quote "
                        "fields that contain the separator"
                    )
                yield _row({field: cells[place] for place, field in header.items() if field}, where)
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: {error}: correct the quotes") from None


def _header(path: Path, text: str) -> tuple[str, dict[int, str]]:
    first = text.splitlines()[0] if text.strip() else ""
    if found := columns_of(first, ("image", "label")):
        delimiter, header = found
        return delimiter, {place: "" if field == "labels" else field for place, field in header.items()}
    found = columns_of(first, ("image", "labels"))
    if found is None:
        raise InputError(
            f"{path} line 1: columns 'image' and 'label' not found in {first[:60]!r}: write {_NEEDED}"
        )
    return found


def columns_of(first: str, needed: Sequence[str]) -> tuple[str, dict[int, str]] | None:
    """The separator and, by place, the field each column holds ("" where it is none of ours).

    None where the first line names no columns for what is needed.
    """
    for delimiter in ("\t", ";", ","):
        cells = next(csv.reader([first], delimiter=delimiter), [])
        header: dict[int, str] = {}
        for place, cell in enumerate(cells):
            word = cell.strip().lower()
            field = next((field for field, words in COLUMNS.items() if word in words), "")
            header[place] = "" if field in header.values() else field
        if set(needed) <= set(header.values()):
            return delimiter, header
    return None


def read_jsonl(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file: an object per line with image, label and, if you like, split and domain."""
    several = is_multi_label(path)
    for where, value in _objects(path):
        fields = {}
        for field in COLUMNS:
            cell = value.get(field)
            if field == ("label" if several else "labels") or (cell is None and field in ("split", "domain")):
                continue
            if field == "label" and type(cell) is int:
                cell = str(cell)
            if field == "labels" and isinstance(cell, list):
                cell = _joined(cell, where)
            if not isinstance(cell, str):
                raise InputError(f"{where}: field {field!r} is {json.dumps(cell)[:40]}: give it as text")
            fields[field] = cell
        yield _row(fields, where)


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return json_objects(str(path), read_text(path).split("\n"))


def json_objects(name: str, lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of JSON lines, with the place to name where it is wrong."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error}): write one object per line") from None
        if not isinstance(value, dict):
            raise InputError(f'{where}: not an object: write {{"image": "cats/1.jpg", "label": "cat"}}')
        yield where, value


def _joined(labels: list[Any], where: str) -> str:
    """A list of labels as a CSV has it."""
    for label in labels:
        if not isinstance(label, str) or SEPARATOR in label:
            raise InputError(
                f"{where}: field 'labels' holds {json.dumps(label)[:40]}: give texts without {SEPARATOR!r}"
            )
    return SEPARATOR.join(labels)


def _row(fields: dict[str, str], where: str) -> Row:
    key = fields["labels" if "labels" in fields else "label"].strip()
    if not key and "label" in fields:
        raise InputError(f"{where}: the label is empty: give the class's name")
    word = fields.get("split", "").strip().lower()
    if word and word not in SPLIT_WORDS:
        raise InputError(f"{where}: split {word!r} is unknown: write train, val or test")
    return Row(
        inside(fields["image"].strip(), where),
        key,
        SPLIT_WORDS.get(word, ""),
        fields.get("domain", "").strip(),
    )


def _distinct(path: Path, rows: list[Row]) -> list[Row]:
    """The rows without exact repeats; an image in two classes or splits is an error, as is half a split."""
    first: dict[str, Row] = {}
    for row in rows:
        other = first.setdefault(row.path, row)
        if other != row:
            what = "label" if other.key != row.key else "split or domain"
            hint = ", or list both in a column 'labels'" if other.key != row.key else ""
            raise InputError(
                f"{path}: {row.path} is listed twice with a different {what}: keep one line{hint}"
            )
    check_splits(path, rows)
    return list(first.values())


def check_splits(path: Path, rows: Sequence[Row]) -> None:
    """Refuse a table that gives some of its images a split, and others none."""
    unsplit = [row for row in rows if not row.split]
    if unsplit and len(unsplit) < len(rows):
        raise InputError(f"{path}: {unsplit[0].path} has no split but others have: give all or none a split")
