"""One model on one split as an HTML file that needs nothing besides itself: where it fails, and on what."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pbprompt.evaluate.answers import MOST_PAIRS, Answers
from pbprompt.evaluate.confusion import most_involved, worst_first
from pbprompt.evaluate.multi_label import LabelAnswers
from pbprompt.files import as_text, write_text
from pbprompt.report import plots
from pbprompt.report.html_page import document, facts_list, figures_html, notices, picture, table
from pbprompt.report.model_figures import class_cells, draw_confusion, draw_trust, percent

MOST_CLASSES = 30  # that stand open; the others are folded away
MOST_IN_MATRIX = 20
MOST_LABELS = 12  # of a multi-label model, whose mistakes are shown
MOST_IMAGES = 4  # of each kind of mistake
LABEL_HEADS = ("Label", "Images", "Given", "AP", "F1", "Precision", "Recall", "Threshold")
FEW_IMAGES = 10  # of a class: one image moves its figures by a tenth or more


def write_model_page(
    out: Path,
    facts: Mapping[str, str],
    figures: Mapping[str, Any],
    answers: Answers | LabelAnswers,
    root: Path,
) -> None:
    """Write the page to the file `out`.

    `facts` say what was judged, `figures` are those of `TunedModel.judge`; below `root` lie the images.
    """
    if isinstance(answers, Answers):
        drawn = plots.available()
        parts = {
            "At a glance": _summary(figures, answers),
            "Most confused pairs": _pairs(answers, root),
            "Classes": _classes(answers),
            "Confusion matrix": _confusion(answers, drawn),
            "How far to trust it": _trust(answers, drawn),
        }
    else:
        there = [one for one in figures["labels"] if one["images"]]
        listed = sorted(there, key=lambda one: one["average_precision"])
        parts = {
            "At a glance": _label_summary(figures),
            "Labels": _labels(listed, figures),
            "Mistakes": _mistakes(listed, answers, root),
        }
    judged = facts_list(facts, notices([facts.get("Backbone", "")]))
    title = f"{facts.get('Model', 'A model')} on {facts.get('Data', 'labelled images')}"
    write_text(out, document(title, {"What was judged": judged, **parts}))


def _summary(figures: Mapping[str, Any], answers: Answers) -> str:
    rows = [("zero-shot", figures["zero_shot"])] if "zero_shot" in figures else []
    rows.append(("this model", figures))
    cells = [
        [name, percent(one["accuracy"]), percent(one["macro_f1"]), f"{one['nll']:.3f}", percent(one["ece"])]
        for name, one in rows
    ]
    heads = ("", "Accuracy", "Macro-F1", "NLL", "ECE")
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(answers))
    beside = " beside those of the untuned backbone" if "zero_shot" in figures else ""
    caption = f"The figures{beside}; ECE: calibration error"
    return f"{table(caption, heads, cells)}<ul>{sentences}</ul>"


def _pairs(answers: Answers, root: Path) -> str:
    boxes = []
    for pair in answers.confused[:MOST_PAIRS]:
        words = (
            f"<p><strong>{escape(answers.classes[pair.true])}</strong> taken for "
            f"<strong>{escape(answers.classes[pair.taken_for])}</strong></p>"
            f"<p>{pair.images} of {answers.per_class[pair.true].images} images ({percent(pair.share)})</p>"
        )
        sure = {answers.paths[row]: float(answers.confidence[row]) for row in answers.examples(pair)}
        boxes.append(_box(words, sure, root))
    more = len(answers.confused) - len(boxes)
    rest = f'<p class="quiet">And {more:,} rarer pairs.</p>' if more > 0 else ""
    lead = "The images shown are those the model was surest of; the figure below each is its confidence."
    return _boxes(lead, boxes) + rest


def _box(words: str, sure: Mapping[str, float], root: Path) -> str:
    """Words (HTML), the images with how sure the model is of what they are about, and where they lie."""
    pictures, places = "", ""
    for path, share in sure.items():
        if image := picture(root / path, path):
            pictures += f"<figure>{image}<figcaption>{percent(share)}</figcaption></figure>"
        places += f'<p class="quiet">{escape(as_text(path))}</p>'
    files = f"<details><summary>Files</summary>{places}</details>"
    return f'<div class="find">{words}<div class="pictures">{pictures}</div>{files}</div>'


def _boxes(lead: str, boxes: Sequence[str]) -> str:
    return f'<p>{lead}</p><div class="finds">{"".join(boxes)}</div>' if boxes else ""


def _classes(answers: Answers) -> str:
    ordered = worst_first(answers.per_class)
    heads = ("Class", "Images", "Recall", "Precision", "F1")
    lead = (
        "<p>Weakest first. Recall: of the images of the class, the share named so. Precision: of the "
        "images named so, the share that are of the class.</p>"
    )
    rows = [[escape(one.name), *class_cells(one)] for one in ordered]
    parts = [lead, table("Every class", heads, rows[:MOST_CLASSES])]
    if rest := rows[MOST_CLASSES:]:
        folded = table("The other classes", heads, rest)
        parts.append(f"<details><summary>{len(rest):,} more classes</summary>{folded}</details>")
    return "\n".join(parts)


def _confusion(answers: Answers, drawn: bool) -> str:
    """The matrix as a table, of the classes with the most errors where there are many; then the picture."""
    places = list(range(len(answers.classes)))
    every = len(places) <= MOST_IN_MATRIX
    if not every:
        places = sorted(most_involved(answers.confusion, MOST_IN_MATRIX))
    names = [answers.classes[place] for place in places]
    counts = answers.confusion[np.ix_(places, places)]
    share = counts / np.maximum(answers.confusion.sum(1)[places, None], 1)
    rows = [
        [escape(name), *(str(count or "·") for count in row)]
        for name, row in zip(names, counts.tolist(), strict=True)
    ]
    caption = "Rows: the true class; columns: the answer" + (
        "" if every else f"; the {len(places)} classes with the most errors"
    )
    heads = ["", *map(escape, names)]
    matrix = table(caption, heads, rows, shares=share.tolist())
    drawing = [] if every or not drawn else figures_html([draw_confusion(answers)])
    return "\n".join([matrix, *drawing])


def _trust(answers: Answers, drawn: bool) -> str:
    coverage, risk = answers.risk_coverage
    rows = []
    for wanted in (0.5, 0.8, 0.9, 1.0):
        at = int(np.searchsorted(coverage, wanted - 1e-9))
        rows.append([f"{wanted:.0%}", percent(1 - float(risk[min(at, len(risk) - 1)]))])
    lead = (
        "<p>Where the model is least sure it is most often wrong, if its confidence is worth anything: "
        "answering only the surest images is then more accurate.</p>"
    )
    surest = table("Answering only the surest images", ("Images answered", "Accuracy among them"), rows)
    return "\n".join([lead, surest, *(figures_html(list(draw_trust(answers))) if drawn else [])])


def findings(answers: Answers) -> list[str]:
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


def _label_summary(figures: Mapping[str, Any]) -> str:
    rows = []
    if figures.get("zero_shot_map") is not None:
        rows.append(["names alone", percent(figures["zero_shot_map"]), "", "", ""])
    for name in ("micro", "macro"):
        shown = [percent(figures[name][key]) for key in ("f1", "precision", "recall")]
        rows.append([name, percent(figures["map"]) if name == "micro" else "", *shown])
    sentence = (
        f"{figures['labels_there']:,} labels are there and {figures['labels_given']:,} were given; "
        f"{percent(figures['exact'])} of the images have all of theirs right."
    )
    caption = "Of all decisions together (micro), and as the mean over the labels (macro)"
    return f"{table(caption, ('', 'mAP', 'F1', 'Precision', 'Recall'), rows)}<p>{escape(sentence)}</p>"


def _labels(listed: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> str:
    rows = []
    for one in listed:
        shares = [percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        rows.append([escape(one["class"]), f"{one['images']:,}", f"{one['answered']:,}", *shares, threshold])
    missing = figures["labels_without_image"]
    note = f'<p class="quiet">{missing} labels that no image here has are in no mean.</p>' if missing else ""
    lead = "<p>Weakest first. AP: average precision, which needs no threshold; F1 rests on one.</p>"
    return f"{lead}{table('Every label that an image has', LABEL_HEADS, rows)}{note}"


def _mistakes(listed: Sequence[Mapping[str, Any]], answers: LabelAnswers, root: Path) -> str:
    boxes = []
    for one in listed[:MOST_LABELS]:
        label = answers.classes.index(one["class"])
        for missed, word in ((True, "missed"), (False, "given wrongly")):
            rows = answers.mistakes(label, missed=missed, most=MOST_IMAGES)
            sure = {answers.paths[row]: float(answers.probabilities[row, label]) for row in rows}
            words = f"<p><strong>{escape(one['class'])}</strong> {word}</p>"
            boxes += [_box(words, sure, root)] if sure else []
    lead = "Of the weakest labels, the images that it is most wrong about, with their probabilities."
    return _boxes(lead, boxes)
