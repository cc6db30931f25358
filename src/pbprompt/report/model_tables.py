"""A model's answers as tables: in the terminal, and as CSV files."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from pbprompt.evaluate.answers import Answers
from pbprompt.evaluate.confusion import csv_rows
from pbprompt.evaluate.per_class import worst_first
from pbprompt.files import write_text
from pbprompt.report import plots
from pbprompt.report.model_figures import draw_confusion, draw_trust
from pbprompt.report.model_findings import percent

MOST_IN_MATRIX = 12  # classes whose confusion matrix fits a terminal
MOST_CLASSES, MOST_PAIRS = 12, 5


def terminal_tables(answers: Answers, root: Path, width: int) -> Iterator[Table | Text]:
    """Classes (the weakest of many), the confusion matrix of few, and the pairs confused most often."""
    shown = worst_first(answers.per_class)[:MOST_CLASSES]
    every = len(shown) == len(answers.classes)
    yield Text("\nClasses" if every else f"\nWeakest {len(shown)} of {len(answers.classes)} classes", "bold")
    table = _table("class", "images", "recall", "precision", "F1")
    for one in answers.per_class if every else shown:
        table.add_row(
            Text(one.name), f"{one.images:,}", percent(one.recall), percent(one.precision), percent(one.f1)
        )
    yield table
    if len(answers.classes) <= MOST_IN_MATRIX and (matrix := _matrix(answers, width)) is not None:
        yield Text("\nConfusion matrix: a row per true class, a column per answer", "bold")
        yield matrix
    if not answers.confused:
        return
    count = len(answers.confused)
    more = f", {MOST_PAIRS} of {count}" if count > MOST_PAIRS else ""
    yield Text(f"\nMost confused pairs{more}, with the image it was surest of, below {root}", "bold")
    pairs = _table("true class", "taken for", "images", "for example", right=("images",))
    for pair in answers.confused[:MOST_PAIRS]:
        (row,) = answers.examples(pair, 1)
        pairs.add_row(
            Text(answers.classes[pair.true]),
            Text(answers.classes[pair.taken_for]),
            f"{pair.images} of {answers.per_class[pair.true].images}",
            Text(answers.paths[row]),
        )
    yield pairs


def write_figures(answers: Answers, folder: Path) -> list[str]:
    """Write tables as CSV and, where matplotlib is, figures as SVG and PNG; the names of the files."""
    rows = [one.to_dict() for one in answers.per_class]
    tables: dict[str, Iterable[Iterable[object]]] = {
        "confusion.csv": csv_rows(answers.confusion, answers.classes),
        "classes.csv": [list(rows[0]), *(row.values() for row in rows)],
    }
    for name, table in tables.items():
        write_text(folder / name, _csv(table))
    if not plots.available():
        return list(tables)
    drawings = [draw_confusion(answers), *draw_trust(answers)]
    names = [f"{drawing.name}.{kind}" for drawing in drawings for kind in ("svg", "png")]
    for drawing in drawings:
        for kind in ("svg", "png"):
            plots.save(drawing.figure, folder / f"{drawing.name}.{kind}")
    return [*tables, *names]


def _table(*heads: str, right: Sequence[str] = ("images", "recall", "precision", "F1")) -> Table:
    columns = [
        Column(head, justify="right" if head in right else "left", no_wrap=head in right, overflow="fold")
        for head in heads
    ]
    return Table(*columns, box=None, pad_edge=False)


def _matrix(answers: Answers, width: int) -> Table | None:
    """The matrix under numbers that stand for the classes; None where it is wider than the terminal."""
    counts = answers.confusion
    cell = max(len(str(counts.max())), len(str(len(counts)))) + 2
    if 20 + cell * len(counts) > width:
        return None
    numbers = [str(place) for place in range(1, len(counts) + 1)]
    table = Table(Column("", overflow="fold"), box=None, pad_edge=False)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    for place, (name, row) in enumerate(zip(answers.classes, counts.tolist(), strict=True)):
        cells = (
            Text(str(count) if count else "·", "bold" if column == place else "red" if count else "dim")
            for column, count in enumerate(row)
        )
        table.add_row(Text(f"{numbers[place]} {name}"), *cells)
    return table


def _csv(rows: Iterable[Iterable[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
