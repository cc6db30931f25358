"""A multi-label model on one split as an HTML file: figures per label, and what it is most wrong about."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pbprompt.evaluate.multi_label import LabelAnswers
from pbprompt.files import write_text
from pbprompt.report.html_page import document, facts_list
from pbprompt.report.model_findings import percent
from pbprompt.report.model_page import html_table
from pbprompt.report.page import LITE
from pbprompt.report.thumbnails import data_uri

MOST_LABELS = 12  # whose mistakes are shown
MOST_IMAGES = 4  # of each kind of mistake
HEADS = ("Label", "Images", "Given", "AP", "F1", "Precision", "Recall", "Threshold")


def write_label_page(
    out: Path, facts: Mapping[str, str], figures: Mapping[str, Any], answers: LabelAnswers, root: Path
) -> None:
    """Write the page to the file `out`; `figures` are those of `TunedModel.judge`."""
    listed = sorted(
        (one for one in figures["labels"] if one["images"]), key=lambda one: one["average_precision"]
    )
    parts = {
        "What was judged": facts_list(facts, [LITE] if facts.get("Backbone") == "lite" else []),
        "At a glance": _summary(figures),
        "Labels": _labels(listed, figures),
        "Mistakes": _mistakes(listed, answers, root),
    }
    title = f"{facts.get('Model', 'A model')} on {facts.get('Data', 'labelled images')}"
    write_text(out, document(title, {name: body for name, body in parts.items() if body}))


def _summary(figures: Mapping[str, Any]) -> str:
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
    return f"{html_table(caption, ('', 'mAP', 'F1', 'Precision', 'Recall'), rows)}<p>{escape(sentence)}</p>"


def _labels(listed: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> str:
    rows = []
    for one in listed:
        shares = [percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        rows.append([one["class"], f"{one['images']:,}", f"{one['answered']:,}", *shares, threshold])
    missing = figures["labels_without_image"]
    note = f'<p class="quiet">{missing} labels that no image here has are in no mean.</p>' if missing else ""
    lead = "<p>Weakest first. AP: average precision, which needs no threshold; F1 rests on one.</p>"
    return f"{lead}{html_table('Every label that an image has', HEADS, rows)}{note}"


def _mistakes(listed: Sequence[Mapping[str, Any]], answers: LabelAnswers, root: Path) -> str:
    boxes = []
    for one in listed[:MOST_LABELS]:
        label = answers.classes.index(one["class"])
        for missed, word in ((True, "missed"), (False, "given wrongly")):
            rows = answers.mistakes(label, missed=missed, most=MOST_IMAGES)
            pictures, places = "", ""
            for row in rows:
                path, sure = answers.paths[row], percent(float(answers.probabilities[row, label]))
                if (uri := data_uri(root / path)) is not None:
                    shown = f'<img src="{uri}" alt="{escape(path)}" loading="lazy">'
                    pictures += f"<figure>{shown}<figcaption>{sure}</figcaption></figure>"
                places += f'<p class="quiet">{escape(path)}</p>'
            if rows:
                boxes.append(
                    f'<div class="find"><p><strong>{escape(one["class"])}</strong> {word}</p>'
                    f'<div class="pictures">{pictures}</div>'
                    f"<details><summary>Files</summary>{places}</details></div>"
                )
    if not boxes:
        return ""
    lead = "<p>Of the weakest labels, the images that it is most wrong about, with their probabilities.</p>"
    return f'{lead}<div class="finds">{"".join(boxes)}</div>'
