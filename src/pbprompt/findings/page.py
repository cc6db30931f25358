"""What was found in words, and as one HTML file that needs nothing besides itself, with small pictures."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from pbprompt.data.items import SPLITS
from pbprompt.files import as_text, write_text
from pbprompt.findings.duplicates import Duplicates
from pbprompt.findings.look import Look
from pbprompt.report.html_page import document, picture, table

STYLE = """
body { max-width: none; }
.pictures img { max-width: 144px; max-height: 144px; cursor: zoom-in; }
.pictures img.large { max-width: 100%; max-height: 80vh; cursor: zoom-out; }
section > svg { width: 100%; height: auto; border: 1px solid var(--rule); }
"""
LARGE = 480  # pixels, enlarged
_TAG = re.compile("<[^>]*>")
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
        "Poor pictures": _poor(found),
        "Map": _map(found),
        "Unreadable files": _unreadable(found),
    }
    title = f"A look at {found.name}"
    page = document(title, {name: body for name, body in parts.items() if body}, STYLE)
    names = json.dumps([] if found.multi_label else found.classes).replace("<", "\\u003c")
    script = (files("pbprompt.findings") / "look.js").read_text(encoding="utf-8")
    write_text(out, page.replace("</body>", f"<script>const classes = {names};\n{script}</script></body>"))


def _overview(found: Look) -> str:
    notes = (f'<p class="notice" role="note">{escape(note)}.</p>' for note in found.notes)
    decide = (
        "<p>Decide about the images below (keep, drop, relabel), download the table, and fit with it: "
        "<code>pbprompt fit … --corrections corrections.csv</code>. A click on a picture enlarges it.</p>"
        '<p><button id="download">Download corrections.csv</button> <span id="decided"></span></p>'
    )
    return "\n".join(
        [f"<p>{escape(headline(found))}</p>", f"<p>{escape(size_words(found))}</p>", *notes, decide]
    )


def _classes(found: Look) -> str:
    if not found.labelled:
        return ""
    rows = [[escape(name), *map(str, counts)] for name, *counts in class_lines(found)]
    return table("Images of each class", ("Class", "train", "val", "test", "all"), rows)


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
    ordered = worst_duplicates(found)
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


def _poor(found: Look) -> str:
    boxes = [_box(found, [one.row], [escape(one.why)]) for one in found.poor[:MOST]]
    return _grid(boxes, len(found.poor))


def _map(found: Look) -> str:
    """Every image as a dot, coloured by class; its path shows under the pointer."""
    dots = []
    for image, (x, y) in zip(found.images, found.places, strict=True):
        hue = (image.labels or (0,))[0] * 137.5 % 360  # neighbours in the list get unlike colours
        at = f'cx="{20 + 960 * x:.0f}" cy="{20 + 560 * y:.0f}" r="4" fill="hsl({hue:.0f} 65% 50% / .7)"'
        dots.append(f"<circle {at}><title>{escape(as_text(image.path))}</title></circle>")
    says = "Images that look alike to the backbone lie together; colours are classes."
    head = f'<p class="quiet">{says}</p><svg viewBox="0 0 1000 600" role="img" aria-label="{says}">'
    return f"{head}{''.join(dots)}</svg>"


def _overlaps(found: Look) -> str:
    rows = [
        f"<li>{escape(found.classes[pair.first])} and {escape(found.classes[pair.second])}: "
        f"{pair.confused} of {pair.images} images ({pair.share:.0%}) are taken for the other</li>"
        for pair in found.overlaps[:MOST]
    ]
    return f"<ul>{''.join(rows)}</ul>{_more(len(found.overlaps))}" if rows else ""


def _unreadable(found: Look) -> str:
    rows = [
        f"<li><code>{escape(as_text(path))}</code>: {escape(why)}</li>"
        for path, why in found.unreadable[: 4 * MOST]
    ]
    return f"<ul>{''.join(rows)}</ul>{_more(len(found.unreadable), 4 * MOST)}" if rows else ""


def _box(found: Look, rows: Sequence[int], words: Sequence[str]) -> str:
    """Pictures, where they are, and words about them (HTML)."""
    pictures, places = [], []
    for row in rows[:MOST_OF_A_GROUP]:
        image = found.images[row]
        pictures.append(picture(found.root / image.path, side=LARGE))
        places.append(f'<p class="quiet">{escape(as_text(image.path))}</p>')
    if len(rows) > MOST_OF_A_GROUP:
        places.append(f'<p class="quiet">and {len(rows) - MOST_OF_A_GROUP} more</p>')
    said = "".join(f"<p>{line}</p>" for line in words)
    about = {
        "image": as_text(found.images[rows[-1]].path),
        "was": found.labelled_as(rows[-1]),
        "why": words[-1],
    }
    data = "".join(f' data-{name}="{escape(_TAG.sub("", text))}"' for name, text in about.items())
    shown = f'<div class="pictures">{"".join(pictures)}</div>{said}{"".join(places)}'
    return f'<div class="find"{data}>{shown}</div>'


def _grid(boxes: Sequence[str], count: int) -> str:
    return f'<div class="finds">{"".join(boxes)}</div>{_more(count)}' if boxes else ""


def _more(count: int, shown: int = MOST) -> str:
    return f'<p class="quiet">and {count - shown:,} more, which --json lists</p>' if count > shown else ""


def headline(found: Look) -> str:
    """How many images, in how many classes, and how unequal these are."""
    splits = Counter(image.split for image in found.images)
    parts = ", ".join(f"{splits[name]:,} {name}" for name in SPLITS if splits[name])
    count = _count(len(found.images), "image")
    if not found.labelled:
        return f"{found.name}: {count} without labels."
    kinds = ("label",) if found.multi_label else ("class", "classes")
    text = f"{found.name}: {count} ({parts}) of {_count(len(found.classes), *kinds)}."
    counts = [count for count in found.counts if count]
    if found.imbalance and found.imbalance > 1:
        text += f" Between {min(counts):,} and {max(counts):,} images per class: {found.imbalance:.1f} to 1."
    return text


def size_words(found: Look) -> str:
    """Pixels and formats."""
    sizes = found.sizes()
    small, usual, large = (
        f"{width} × {height}" for width, height in (sizes["smallest"], sizes["median"], sizes["largest"])
    )
    formats = ", ".join(f"{count:,} {name}" for name, count in sizes["formats"].items())
    pixels = (
        f"All are {usual} pixels" if small == large else f"From {small} to {large} pixels, median {usual}"
    )
    return f"{pixels}; {formats}."


def class_lines(found: Look) -> list[tuple[str, int, int, int, int]]:
    """Name, images in train, val and test, and in all; the smallest class first."""
    counted = Counter((label, image.split) for image in found.images for label in image.labels)
    lines = []
    for label, name in enumerate(found.classes):
        train, val, test = (counted[label, split] for split in SPLITS)
        lines.append((name, train, val, test, train + val + test))
    return sorted(lines, key=lambda line: (line[-1], line[0]))


def duplicate_words(found: Look, group: Duplicates) -> list[str]:
    """What it is, and what makes it harmful."""
    words = ["exact" if group.exact else "near"]
    if found.across_classes(group):
        names = {found.labelled_as(row) for row in group.rows}
        if found.multi_label:
            words.append(f"labelled in several ways: {'; '.join(sorted(names))}")
        else:
            words.append(f"two labels: {', '.join(sorted(names))}" if len(names) == 2 else "several labels")
    if found.across_splits(group):
        splits = {found.images[row].split for row in group.rows}
        words.append(f"in {' and '.join(name for name in SPLITS if name in splits)}")
    return words


def worst_duplicates(found: Look) -> list[Duplicates]:
    """Duplicates, those that harm in most ways first."""
    return sorted(found.duplicates, key=lambda group: -len(duplicate_words(found, group)))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
