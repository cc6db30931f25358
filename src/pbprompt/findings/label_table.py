"""A table to be filled in by a person: image, label (empty at first), and what the model would call it.

`fit` reads it once every row has a label; further rows are added below those that are there. That of a
multi-label model has a column `labels`, where an empty cell says "none of them".
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pbprompt.errors import InputError
from pbprompt.files import read_text, write_text

HEADER = ["image", "label", "suggested", "probability", "score"]
LABELS_HEADER = ["image", "labels", "suggested", "probability", "score"]


class Row(NamedTuple):
    """A line of the table, as text."""

    image: str
    label: str
    suggested: str
    probability: str
    score: str


def table_root(folder: Path, table: Path) -> Path:
    """What its paths are relative to: its own folder, as `fit` expects, if that holds the images."""
    home = table.parent.resolve()
    return home if folder.resolve().is_relative_to(home) else folder.resolve()


def name_in_table(path: Path, folder: Path, root: Path) -> str:
    """An image of the folder as the table calls it; a link in the folder keeps its own name."""
    return (folder.resolve() / path.relative_to(folder)).relative_to(root).as_posix()


def read_table(path: Path) -> list[Row]:
    """The rows of a table that `write_table` wrote and a person edited; spreadsheets may put ; for ,."""
    text = read_text(path)
    for delimiter in (",", ";", "\t"):
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        if lines and [cell.strip() for cell in lines[0]] in (HEADER, LABELS_HEADER):
            wrong = [at for at, line in enumerate(lines, 1) if line and len(line) != len(HEADER)]
            if wrong:
                raise InputError(f"{path} line {wrong[0]}: {len(HEADER)} fields belong there: correct it")
            return [Row(*(cell.strip() for cell in line)) for line in lines[1:] if any(line)]
    raise InputError(f"{path}: not a table of images to label ({','.join(HEADER)}): choose another name")


def write_table(path: Path, rows: Sequence[Row], *, multi_label: bool = False) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(LABELS_HEADER if multi_label else HEADER)
    writer.writerows(rows)
    write_text(path, stream.getvalue())
