"""One model on one split as an HTML file that needs nothing besides itself: where it fails, and on what."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pbprompt.evaluate.answers import MOST_PAIRS, Answers
from pbprompt.evaluate.confusion import most_involved
from pbprompt.evaluate.per_class import ClassFigures, worst_first
from pbprompt.files import write_text
from pbprompt.report import plots
from pbprompt.report.html_page import document, facts_list, figures_html
from pbprompt.report.model_figures import draw_confusion, draw_trust
from pbprompt.report.model_findings import findings, percent
from pbprompt.report.page import LITE, NO_FIGURES
from pbprompt.report.thumbnails import data_uri

MOST_CLASSES = 30  # that stand open; the others are folded away
MOST_IN_MATRIX = 20
STYLE = """
.matrix td { min-width: 2.2rem; border: 1px solid var(--rule); }
.matrix thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; }
.matrix thead th:first-child { writing-mode: horizontal-tb; transform: none; }
"""


def write_model_page(
    out: Path, facts: Mapping[str, str], figures: Mapping[str, Any], answers: Answers, root: Path
) -> None:
    """Write the page to the file `out`.

    `facts` say what was judged, `figures` are those of `TunedModel.evaluate`; below `root` lie the images.
    """
    drawn = plots.available()
    notices = [LITE] if facts.get("Backbone") == "lite" else []
    notices += [] if drawn else [NO_FIGURES]
    parts = {
        "What was judged": facts_list(facts, notices),
        "At a glance": _summary(figures, answers),
        "Most confused pairs": _pairs(answers, root),
        "Classes": _classes(answers),
        "Confusion matrix": _confusion(answers, drawn),
        "How far to trust it": _trust(answers, drawn),
    }
    title = f"{facts.get('Model', 'A model')} on {facts.get('Data', 'labelled images')}"
    write_text(out, document(title, {name: body for name, body in parts.items() if body}, STYLE))


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
    return f"{html_table(caption, heads, cells)}<ul>{sentences}</ul>"


def _pairs(answers: Answers, root: Path) -> str:
    boxes = []
    for pair in answers.confused[:MOST_PAIRS]:
        pictures, places = [], []
        for row in answers.examples(pair):
            path, sure = answers.paths[row], percent(float(answers.confidence[row]))
            if (uri := data_uri(root / path)) is not None:
                pictures.append(
                    f'<figure><img src="{uri}" alt="{escape(path)}" loading="lazy">'
                    f"<figcaption>{sure}</figcaption></figure>"
                )
            places.append(f'<p class="quiet">{escape(path)}</p>')
        words = (
            f"<p><strong>{escape(answers.classes[pair.true])}</strong> taken for "
            f"<strong>{escape(answers.classes[pair.taken_for])}</strong></p>"
            f"<p>{pair.images} of {answers.per_class[pair.true].images} images ({percent(pair.share)})</p>"
        )
        folded = f"<details><summary>Files</summary>{''.join(places)}</details>"
        boxes.append(
            f'<div class="find">{words}<div class="pictures">{"".join(pictures)}</div>{folded}</div>'
        )
    if not boxes:
        return ""
    more = len(answers.confused) - len(boxes)
    rest = f'<p class="quiet">And {more:,} rarer pairs.</p>' if more > 0 else ""
    lead = (
        "<p>The images shown are those the model was surest of; the figure below each is its confidence.</p>"
    )
    return f'{lead}<div class="finds">{"".join(boxes)}</div>{rest}'


def _classes(answers: Answers) -> str:
    ordered = worst_first(answers.per_class)
    heads = ("Class", "Images", "Recall", "Precision", "F1")
    lead = (
        "<p>Weakest first. Recall: of the images of the class, the share named so. Precision: of the "
        "images named so, the share that are of the class.</p>"
    )
    parts = [lead, html_table("Every class", heads, list(map(_class_cells, ordered[:MOST_CLASSES])))]
    if rest := ordered[MOST_CLASSES:]:
        table = html_table("The other classes", heads, list(map(_class_cells, rest)))
        parts.append(f"<details><summary>{len(rest):,} more classes</summary>{table}</details>")
    return "\n".join(parts)


def _class_cells(one: ClassFigures) -> list[str]:
    return [one.name, f"{one.images:,}", percent(one.recall), percent(one.precision), percent(one.f1)]


def _confusion(answers: Answers, drawn: bool) -> str:
    """The matrix as a table, of the classes with the most errors where there are many; then the picture."""
    places = list(range(len(answers.classes)))
    every = len(places) <= MOST_IN_MATRIX
    if not every:
        places = sorted(most_involved(answers.confusion, MOST_IN_MATRIX))
    names = [answers.classes[place] for place in places]
    counts = answers.confusion[np.ix_(places, places)]
    share = counts / np.maximum(answers.confusion.sum(1)[places, None], 1)
    rows = []
    for name, row, shares in zip(names, counts.tolist(), share.tolist(), strict=True):
        cells = "".join(map(_matrix_cell, row, shares))
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    caption = "Rows: the true class; columns: the answer" + (
        "" if every else f"; the {len(places)} classes with the most errors"
    )
    table = (
        f'<p class="quiet">{caption}.</p>'  # no caption of the table, which would be as wide as that
        f'<div class="wide" role="region" aria-label="{caption}" tabindex="0"><table class="matrix">'
        f"<thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    picture = [] if every or not drawn else figures_html([draw_confusion(answers)])
    return "\n".join([table, *picture])


def _matrix_cell(count: int, share: float) -> str:
    """Shaded by the share of the class's images; text stays readable on the lighter part of the scale."""
    shade = f' style="background: rgb(0 114 178 / {0.6 * share:.2f})"' if count else ""
    return f"<td{shade}>{count or '·'}</td>"


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
    table = html_table("Answering only the surest images", ("Images answered", "Accuracy among them"), rows)
    return "\n".join([lead, table, *(figures_html(list(draw_trust(answers))) if drawn else [])])


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, the first of a row as its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = ""
    for first, *cells in rows:
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(first)}</th>{data}</tr>'
    label = escape(caption)
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0"><table><caption>{label}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
