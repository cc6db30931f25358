"""What was found as one HTML file that needs nothing besides itself, with small pictures."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pbprompt.files import write_text
from pbprompt.findings.look import Look
from pbprompt.findings.words import class_lines, duplicate_words, headline, size_words
from pbprompt.report.html_page import document
from pbprompt.report.thumbnails import data_uri

MOST = 24  # findings of a kind with pictures
MOST_OF_A_GROUP = 4


def write_page(found: Look, out: Path) -> None:
    """Write the page to the file `out`."""
    parts = {
        "Overview": _overview(found),
        "Classes": _classes(found),
        "Likely label errors": _label_errors(found),
        "Duplicates": _duplicates(found),
        "Overlapping classes": _overlaps(found),
        "Least familiar images": _outliers(found),
        "Unreadable files": _unreadable(found),
    }
    title = f"A look at {found.name}"
    write_text(out, document(title, {name: body for name, body in parts.items() if body}))


def _overview(found: Look) -> str:
    notes = (f'<p class="notice" role="note">{escape(note)}.</p>' for note in found.notes)
    return "\n".join([f"<p>{escape(headline(found))}</p>", f"<p>{escape(size_words(found))}</p>", *notes])


def _classes(found: Look) -> str:
    if not found.labelled:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Class", "train", "val", "test", "all"))
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{count}</td>" for count in counts)}</tr>'
        for name, *counts in class_lines(found)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide" role="region" aria-label="Images of each class" tabindex="0">{table}</div>'


def _label_errors(found: Look) -> str:
    boxes = []
    for error in found.label_errors[:MOST]:
        label, suggested = found.labelled_as(error.row), found.suggested(error)
        words = [
            f"labelled <strong>{escape(label)}</strong> ({error.label_probability:.1%})",
            f"looks like <strong>{escape(suggested)}</strong> ({error.suggested_probability:.1%})",
        ]
        boxes.append(_box(found, [error.row], words))
    return _grid(boxes, len(found.label_errors))


def _duplicates(found: Look) -> str:
    ordered = sorted(found.duplicates, key=lambda group: -len(duplicate_words(found, group)))
    boxes = [
        _box(found, group.rows, [escape(word) for word in duplicate_words(found, group)])
        for group in ordered[:MOST]
    ]
    return _grid(boxes, len(ordered))


def _outliers(found: Look) -> str:
    boxes = []
    for far in found.outliers[:MOST]:
        label = escape(found.classes[found.images[far.row].label])
        boxes.append(_box(found, [far.row], [f"labelled {label}"]))
    return _grid(boxes, len(found.outliers))


def _overlaps(found: Look) -> str:
    rows = [
        f"<li>{escape(found.classes[pair.first])} and {escape(found.classes[pair.second])}: "
        f"{pair.confused} of {pair.images} images ({pair.share:.0%}) are taken for the other</li>"
        for pair in found.overlaps[:MOST]
    ]
    return f"<ul>{''.join(rows)}</ul>{_more(len(found.overlaps))}" if rows else ""


def _unreadable(found: Look) -> str:
    rows = [
        f"<li><code>{escape(path)}</code>: {escape(why)}</li>" for path, why in found.unreadable[: 4 * MOST]
    ]
    return f"<ul>{''.join(rows)}</ul>{_more(len(found.unreadable), 4 * MOST)}" if rows else ""


def _box(found: Look, rows: Sequence[int], words: Sequence[str]) -> str:
    """Pictures, where they are, and words about them (HTML)."""
    pictures, places = [], []
    for row in rows[:MOST_OF_A_GROUP]:
        image = found.images[row]
        uri = data_uri(found.root / image.path)
        pictures.append(f'<img src="{uri}" alt="" loading="lazy">' if uri else "")
        places.append(f'<p class="quiet">{escape(image.path)}</p>')
    if len(rows) > MOST_OF_A_GROUP:
        places.append(f'<p class="quiet">and {len(rows) - MOST_OF_A_GROUP} more</p>')
    said = "".join(f"<p>{line}</p>" for line in words)
    return f'<div class="find"><div class="pictures">{"".join(pictures)}</div>{said}{"".join(places)}</div>'


def _grid(boxes: Sequence[str], count: int) -> str:
    return f'<div class="finds">{"".join(boxes)}</div>{_more(count)}' if boxes else ""


def _more(count: int, shown: int = MOST) -> str:
    return f'<p class="quiet">and {count - shown:,} more, which --json lists</p>' if count > shown else ""
