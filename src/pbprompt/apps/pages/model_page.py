"""One model on one split as an HTML file that needs nothing besides itself: where it fails, and on what."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.html_page import notices, page
from pbprompt.apps.pages.model_figures import class_cells, draw_confusion, draw_trust, percent
from pbprompt.files import write_text
from pbprompt.model.calibration import chosen
from pbprompt.model.card import GROUP_HEADS, TRADE_HEADS, group_cells, trade_cells
from pbprompt.model.metrics.classification import ConfusedPair, most_involved, worst_first
from pbprompt.model.metrics.evaluation import MOST_PAIRS, Evaluation, MultiLabelEvaluation

MOST_CLASSES = 30  # that stand open; the others are folded away
MOST_IN_MATRIX = 20
MOST_LABELS = 12  # of a multi-label model, whose mistakes are shown
MOST_IMAGES = 4  # of each kind of mistake
FEW_IMAGES = 10  # of a class: one image moves its figures by a tenth or more


def write_model_page(
    out: Path,
    facts: Mapping[str, str],
    figures: Mapping[str, Any],
    answers: Evaluation | MultiLabelEvaluation,
    root: Path,
    alike: Mapping[str, Image.Image] | None = None,
) -> None:
    """Write the page to the file `out`.

    `facts` say what was judged, `figures` are those of `TunedModel.judge`; below `root` lie the images.
    `alike`: of some mistakes by path, a picture of what spoke for the answer and for the truth.
    """
    judged = {
        "title": f"{facts.get('Model', 'A model')} on {facts.get('Data', 'labelled images')}",
        "judged": facts,
        "notices": notices([facts.get("Backbone", "")]),
        "root": root,
    }
    if isinstance(answers, Evaluation):
        html = page("model.html", **judged, alike=alike or {}, **_of_classes(figures, answers))
    else:
        html = page("labels.html", **judged, figures=figures, **_of_labels(figures, answers))
    write_text(out, html)


def _of_classes(figures: Mapping[str, Any], answers: Evaluation) -> dict[str, Any]:
    """What model.html shows of a single-label model."""
    drawn, trade = plots.available(), figures.get("trade", ())
    rows = [("zero-shot", figures["zero_shot"])] if "zero_shot" in figures else []
    rows.append(("this model", figures))
    return {
        "summary": [
            [
                name,
                percent(one["accuracy"]),
                percent(one["macro_f1"]),
                f"{one['nll']:.3f}",
                percent(one["ece"]),
            ]
            for name, one in rows
        ],
        "findings": findings(answers),
        "pairs": [_pair(pair, answers) for pair in answers.confused[:MOST_PAIRS]],
        "rarer": max(0, len(answers.confused) - MOST_PAIRS),
        "classes": [[one.name, *class_cells(one)] for one in worst_first(answers.per_class)],
        "most": MOST_CLASSES,
        "confusion": _confusion(answers, drawn),
        "surest": _surest(answers),
        "promised": {
            "caption": "What --reject-at promises, and what came of it on these images",
            "heads": TRADE_HEADS,
            "rows": [trade_cells(row) for row in chosen(trade)],
        },
        "groups": {
            "caption": "What --back-off promises, and what came of it on these images",
            "heads": GROUP_HEADS,
            "rows": [group_cells(row) for row in figures.get("groups", ())],
        },
        "trust_drawings": list(draw_trust(answers, trade)) if drawn else [],
    }


def _pair(pair: ConfusedPair, answers: Evaluation) -> dict[str, Any]:
    return {
        "true": answers.classes[pair.true],
        "taken_for": answers.classes[pair.taken_for],
        "count": f"{pair.images} of {answers.per_class[pair.true].images} images",
        "share": pair.share,
        "sure": {answers.paths[row]: float(answers.confidence[row]) for row in answers.examples(pair)},
    }


def _confusion(answers: Evaluation, drawn: bool) -> dict[str, Any]:
    """The matrix as a table, of the classes with the most errors where there are many; then the picture."""
    places = list(range(len(answers.classes)))
    every = len(places) <= MOST_IN_MATRIX
    if not every:
        places = sorted(most_involved(answers.confusion, MOST_IN_MATRIX))
    names = [answers.classes[place] for place in places]
    counts = answers.confusion[np.ix_(places, places)]
    share = counts / np.maximum(answers.confusion.sum(1)[places, None], 1)
    some = "" if every else f"; the {len(places)} classes with the most errors"
    return {
        "caption": f"Rows: the true class; columns: the answer{some}",
        "heads": ["", *names],
        "rows": [
            [name, *(str(count or "·") for count in row)]
            for name, row in zip(names, counts.tolist(), strict=True)
        ],
        "shares": share.tolist(),
        "drawings": [draw_confusion(answers)] if drawn and not every else [],
    }


def _surest(answers: Evaluation) -> Iterator[tuple[str, str]]:
    """How right the surest images are named, by how many of them are answered."""
    coverage, risk = answers.risk_coverage
    for wanted in (0.5, 0.8, 0.9, 1.0):
        at = int(np.searchsorted(coverage, wanted - 1e-9))
        yield f"{wanted:.0%}", percent(1 - float(risk[min(at, len(risk) - 1)]))


def findings(answers: Evaluation) -> list[str]:
    """How many are wrong, the weakest class, the worst pair, whether confidence leans, and what to doubt."""
    wrong = len(answers) - int(answers.right.sum())
    said = [f"{wrong:,} of {len(answers):,} images are named wrongly."]
    weakest = worst_first(answers.per_class)[0]
    if weakest.recall is not None and weakest.recall < 1:
        found = f"{weakest.right} of its {weakest.images} images are found ({percent(weakest.recall)})"
        said.append(f"Weakest class: {weakest.name}; {found}.")
    if answers.confused:
        pair = answers.confused[0]
        how_often = f"{pair.images} of {answers.per_class[pair.true].images} images"
        said.append(
            f"Most confused: {answers.classes[pair.true]}, taken for {answers.classes[pair.taken_for]} "
            f"({how_often})."
        )
    said.append(_lean(float(answers.confidence.mean()), float(answers.right.mean())))
    few = sum(0 < one.images < FEW_IMAGES for one in answers.per_class)
    if few:
        said.append(
            f"Classes with fewer than {FEW_IMAGES} images here: {few} of {len(answers.classes)}. A single "
            "image moves their figures a good deal."
        )
    return said


def _lean(sure: float, right: float) -> str:
    gap = 100 * (sure - right)
    average = f"Its confidence averages {percent(sure)}, its accuracy is {percent(right)}"
    if abs(gap) < 1:
        return f"{average}: on average it is as sure as it is right."
    lean = "overconfident" if gap > 0 else "underconfident"
    return f"{average}: it is {lean} by {abs(gap):.1f} points."


def _of_labels(figures: Mapping[str, Any], answers: MultiLabelEvaluation) -> dict[str, Any]:
    """What labels.html shows of a multi-label model."""
    there = [one for one in figures["labels"] if one["images"]]
    listed = sorted(there, key=lambda one: one["average_precision"])
    summary = []
    if figures.get("zero_shot_map") is not None:
        summary.append(["names alone", percent(figures["zero_shot_map"]), "", "", ""])
    for name in ("micro", "macro"):
        shown = [percent(figures[name][key]) for key in ("f1", "precision", "recall")]
        summary.append([name, percent(figures["map"]) if name == "micro" else "", *shown])
    labels = []
    for one in listed:
        shares = [percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        labels.append([one["class"], f"{one['images']:,}", f"{one['answered']:,}", *shares, threshold])
    return {"summary": summary, "labels": labels, "mistakes": _mistakes(listed, answers)}


def _mistakes(
    listed: Sequence[Mapping[str, Any]], answers: MultiLabelEvaluation
) -> list[tuple[str, str, dict[str, float]]]:
    """A label, what is wrong, and the images it is most wrong about with their probabilities."""
    found = []
    for one in listed[:MOST_LABELS]:
        label = answers.classes.index(one["class"])
        for missed, word in ((True, "missed"), (False, "given wrongly")):
            rows = answers.mistakes(label, missed=missed, most=MOST_IMAGES)
            sure = {answers.paths[row]: float(answers.probabilities[row, label]) for row in rows}
            found += [(one["class"], word, sure)] if sure else []
    return found
