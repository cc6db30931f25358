"""One model on one split: where it fails, and on what, as one HTML file, or as tables and figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from PIL import Image

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.html_page import notices, page
from pbprompt.apps.pages.plots import Drawing
from pbprompt.files import as_csv, write_text
from pbprompt.model.calibration import chosen
from pbprompt.model.card import GROUP_HEADS, TRADE_HEADS, class_cells, group_cells, percent, trade_cells
from pbprompt.model.metrics.classification import csv_rows, most_involved, worst_first
from pbprompt.model.metrics.evaluation import MOST_PAIRS, Evaluation, MultiLabelEvaluation
from pbprompt.model.metrics.selective import area_under_risk_coverage

MOST_CLASSES = 30  # that stand open; the others are folded away
MOST_IN_MATRIX = 20
MOST_LABELS = 12  # of a multi-label model, whose mistakes are shown
MOST_IMAGES = 4  # of each kind of mistake
FEW_IMAGES = 10  # of a class: one image moves its figures by a tenth or more
MOST_NAMED = 60  # classes whose names fit beside a drawn matrix
MOST_COUNTED = 24  # classes whose counts fit into its cells
DARK, PALE = "#101418", "#fdfdfd"  # not the page's ink: a cell keeps its colour on a dark page


def write_model_page(
    out: Path,
    facts: Mapping[str, str],
    figures: Mapping[str, Any],
    answers: Evaluation | MultiLabelEvaluation,
    root: Path,
    alike: Mapping[str, Image.Image] | None = None,
) -> None:
    """Write the page, which needs nothing besides itself, to the file `out`.

    `facts` say what was judged, `figures` are those of `judge`; below `root` lie the images.
    `alike`: of some mistakes by path, a picture of what spoke for the answer and for the truth.
    """
    judged = {
        "title": f"{facts.get('Model', 'A model')} on {facts.get('Data', 'labelled images')}",
        "judged": facts,
        "notices": notices([facts.get("Backbone", "")]),
        "root": root,
        "figures": figures,
    }
    if isinstance(answers, Evaluation):
        html = page("model.html", **judged, alike=alike or {}, **_of_classes(figures, answers))
    else:
        html = page("labels.html", **judged, **_of_labels(figures, answers))
    write_text(out, html)


def _of_classes(figures: Mapping[str, Any], answers: Evaluation) -> dict[str, Any]:
    """What model.html shows of a single-label model."""
    drawn, trade = plots.available(), figures.get("trade", ())
    return {
        "findings": findings(answers),
        "pairs": [
            {
                "true": answers.classes[pair.true],
                "taken_for": answers.classes[pair.taken_for],
                "count": f"{pair.images} of {answers.per_class[pair.true].images} images",
                "share": pair.share,
                "sure": {answers.paths[row]: answers.confidence[row] for row in answers.examples(pair)},
            }
            for pair in answers.confused[:MOST_PAIRS]
        ],
        "rarer": len(answers.confused[MOST_PAIRS:]),
        "classes": [[one.name, *class_cells(one)] for one in worst_first(answers.per_class)],
        "most": MOST_CLASSES,
        "confusion": _confusion(answers, drawn),
        "surest": _surest(answers),
        "trade": (TRADE_HEADS, [trade_cells(row) for row in chosen(trade)]),
        "groups": (GROUP_HEADS, [group_cells(row) for row in figures.get("groups", ())]),
        "trust_drawings": list(draw_trust(answers, trade)) if drawn else [],
    }


def _confusion(answers: Evaluation, drawn: bool) -> dict[str, Any]:
    """The matrix as a table, of the classes with the most errors where there are many; then the picture."""
    places = list(range(len(answers.classes)))
    every = len(places) <= MOST_IN_MATRIX
    if not every:
        places = sorted(most_involved(answers.confusion, MOST_IN_MATRIX))
    names = [answers.classes[place] for place in places]
    counts = answers.confusion[np.ix_(places, places)]
    shown = np.where(counts > 0, counts.astype(str), "·").tolist()
    some = "" if every else f"; the {len(places)} classes with the most errors"
    return {
        "caption": f"Rows: the true class; columns: the answer{some}",
        "heads": ["", *names],
        "rows": [[name, *row] for name, row in zip(names, shown, strict=True)],
        "shares": _row_shares(answers)[np.ix_(places, places)].tolist(),
        "drawings": [draw_confusion(answers)] if drawn and not every else [],
    }


def _row_shares(answers: Evaluation) -> np.ndarray:
    """Of the images of each class, the share with each answer."""
    counts = answers.confusion
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1))


def _surest(answers: Evaluation) -> Iterator[tuple[str, str]]:
    """How right the surest images are named, by how many of them are answered."""
    coverage, risk = answers.risk_coverage
    for wanted in (0.5, 0.8, 0.9, 1.0):
        at = int(np.searchsorted(coverage, wanted - 1e-9))
        yield f"{wanted:.0%}", percent(1 - float(risk[min(at, len(risk) - 1)]))


def findings(answers: Evaluation) -> list[str]:
    """How many are wrong, the weakest class, the worst pair, whether confidence leans, and what to doubt."""
    wrong = len(answers) - int(answers.right.sum())
    sentences = [f"{wrong:,} of {len(answers):,} images are named wrongly."]
    weakest = worst_first(answers.per_class)[0]
    if weakest.recall is not None and weakest.recall < 1:
        found = f"{weakest.right} of its {weakest.images} images are found ({percent(weakest.recall)})"
        sentences.append(f"Weakest class: {weakest.name}; {found}.")
    if answers.confused:
        pair = answers.confused[0]
        true, answer = answers.classes[pair.true], answers.classes[pair.taken_for]
        how_often = f"{pair.images} of {answers.per_class[pair.true].images} images"
        sentences.append(f"Most confused: {true}, taken for {answer} ({how_often}).")
    sentences.append(_lean(float(answers.confidence.mean()), float(answers.right.mean())))
    if few := sum(0 < one.images < FEW_IMAGES for one in answers.per_class):
        sentences.append(
            f"Classes with fewer than {FEW_IMAGES} images here: {few} of {len(answers.classes)}. A single "
            "image moves their figures a good deal."
        )
    return sentences


def _lean(sure: float, right: float) -> str:
    gap = 100 * (sure - right)
    average = f"Its confidence averages {percent(sure)}, its accuracy is {percent(right)}"
    if abs(gap) < 1:
        return f"{average}: on average it is as sure as it is right."
    lean = "overconfident" if gap > 0 else "underconfident"
    return f"{average}: it is {lean} by {abs(gap):.1f} points."


def _of_labels(figures: Mapping[str, Any], answers: MultiLabelEvaluation) -> dict[str, Any]:
    """What labels.html shows of a multi-label model: its labels, the weakest first, and of these each kind of
    mistake, with the images it is most wrong about and their probabilities."""
    listed = sorted(
        (one for one in figures["labels"] if one["images"]), key=lambda one: one["average_precision"]
    )
    mistakes = []
    for one in listed[:MOST_LABELS]:
        label = answers.classes.index(one["class"])
        for missed, word in ((True, "missed"), (False, "given wrongly")):
            rows = answers.mistakes(label, missed=missed, most=MOST_IMAGES)
            sure = {answers.paths[row]: float(answers.probabilities[row, label]) for row in rows}
            mistakes += [(one["class"], word, sure)] if sure else []
    return {"listed": listed, "mistakes": mistakes}


@plots.styled
def draw_confusion(answers: Evaluation) -> Drawing:
    """Of all classes; up to `MOST_NAMED` by name, with counts for up to `MOST_COUNTED`; needs matplotlib."""
    counts, classes, share = answers.confusion, answers.classes, _row_shares(answers)
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
    curves = {"this model": (coverage, risk)}
    if points := sorted((row["answered"], 1 - row["promised"]) for row in trade):
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
        "Accuracy by mean confidence in per cent: " + plots.reliability_words(answers.reliability),
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
    drawings = [draw_confusion(answers), *draw_trust(answers, trade)] if plots.available() else []
    figures = {f"{one.name}.{kind}": one.figure for one in drawings for kind in ("svg", "png")}
    for name, figure in figures.items():
        plots.save(figure, folder / name)
    return [*tables, *figures]
