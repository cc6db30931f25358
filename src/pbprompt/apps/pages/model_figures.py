"""A model's answers as figures and as tables: for files, and for its page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.plots import Drawing, reliability_words
from pbprompt.files import as_csv, write_text
from pbprompt.model.metrics.classification import ClassFigures, csv_rows
from pbprompt.model.metrics.evaluation import Evaluation
from pbprompt.model.metrics.selective import area_under_risk_coverage

MOST_NAMED = 60  # classes whose names fit beside the matrix
MOST_COUNTED = 24  # classes whose counts fit into the cells
DARK, PALE = "#101418", "#fdfdfd"  # not the page's ink: a cell keeps its colour on a dark page


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def class_cells(one: ClassFigures) -> list[str]:
    """Images, recall, precision and F1 of a class."""
    return [f"{one.images:,}", *map(percent, (one.recall, one.precision, one.f1))]


@plots.styled
def draw_confusion(answers: Evaluation) -> Drawing:
    """Of all classes; up to `MOST_NAMED` by name, with counts for up to `MOST_COUNTED`; needs matplotlib."""
    counts, classes = answers.confusion, answers.classes
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    named = len(classes) <= MOST_NAMED
    side = min(9.0, max(3.0, 1.2 + 0.3 * len(classes))) if named else 6.4
    figure, axes = plots.new_axes(side + 0.6, side, "")
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    axes.set(xlabel="answer", ylabel="true class")
    if named:
        names = [shorten(name, 18, placeholder="…") or name[:18] for name in classes]
        size = 8 if len(classes) <= MOST_COUNTED else 6
        axes.set_xticks(range(len(classes)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(classes)), names, fontsize=size)
    if len(classes) <= MOST_COUNTED:
        for row, column in np.argwhere(counts):
            colour = PALE if share[row, column] > 0.5 else DARK
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, size=7)
    return Drawing(
        "confusion",
        "Confusion matrix of all classes, in the order of the data: rows are the truth, columns the answers; "
        "the darker, the larger the share of a class's images.",
        f"{len(answers) - int(answers.right.sum())} of {len(answers)} images lie beside the diagonal.",
        figure,
    )


def draw_trust(answers: Evaluation, trade: Sequence[Mapping[str, Any]] = ()) -> Iterator[Drawing]:
    """Whether confidence means what it says, and what is gained by answering only the sure images; `trade`:
    what was promised of it (`Promise.kept`)."""
    coverage, risk = answers.risk_coverage
    area = area_under_risk_coverage(answers.confidence, answers.right)
    points = sorted((row["answered"], 1 - row["promised"]) for row in trade)
    curves = {"this model": (coverage, risk)}
    if points:
        curves["promised"] = (np.array([x for x, _ in points]), np.array([y for _, y in points]))
    yield Drawing(
        "risk-coverage",
        "Risk against coverage: the share of errors among the surest images, from few of them to all.",
        f"Area under the curve {area:.1%}; with every image answered {risk[-1]:.1%} are wrong.",
        plots.risk_coverage_curves(curves),
    )
    yield Drawing(
        "reliability",
        "Reliability: accuracy of images by how sure the model is; below, how many there are.",
        "Accuracy by mean confidence in per cent: " + reliability_words(answers.reliability),
        plots.reliability_diagram(answers.reliability),
        small=True,
    )


def write_figures(answers: Evaluation, folder: Path, trade: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Write tables as CSV and, where matplotlib is, figures as SVG and PNG; the names of the files."""
    rows = [one.to_dict() for one in answers.per_class]
    tables: dict[str, Iterable[Iterable[object]]] = {
        "confusion.csv": csv_rows(answers.confusion, answers.classes),
        "classes.csv": [list(rows[0]), *(row.values() for row in rows)],
    }
    for name, table in tables.items():
        write_text(folder / name, as_csv(table))
    if not plots.available():
        return list(tables)
    drawings = [draw_confusion(answers), *draw_trust(answers, trade)]
    figures = {f"{one.name}.{kind}": one.figure for one in drawings for kind in ("svg", "png")}
    for name, figure in figures.items():
        plots.save(figure, folder / name)
    return [*tables, *figures]
