"""What was found in words, and as one HTML file that needs nothing besides itself, with small pictures."""

import json
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
MOST = 24  # findings of a kind with pictures
MOST_OF_A_GROUP = 4


def write_page(found: Look, out: Path) -> None:
    """Write the page to the file `out`."""
    errors = []
    for one in found.label_errors:
        labelled = f"labelled {found.labelled_as(one.row)} ({one.label_probability:.1%})"
        seen = f"looks like {found.suggested(one)} ({one.suggested_probability:.1%})"
        errors.append(((one.row,), [labelled, seen]))
    copies = [(group.rows, duplicate_words(found, group)) for group in worst_duplicates(found)]
    far = [((out.row,), [f"labelled {found.labelled_as(out.row)}"]) for out in found.outliers]
    pairs = [
        f"{escape(found.classes[pair.first])} and {escape(found.classes[pair.second])}: "
        f"{pair.confused} of {pair.images} images ({pair.share:.0%}) are taken for the other"
        for pair in found.overlaps
    ]
    broken = [f"<code>{escape(as_text(path))}</code>: {escape(why)}" for path, why in found.unreadable]
    parts = {
        "Overview": _overview(found),
        "Classes": _classes(found),
        "Likely label errors": _grid(found, errors),
        "Duplicates": _grid(found, copies),
        "Overlapping classes": _list(pairs, MOST),
        "Least familiar images": _grid(found, far),
        "Poor pictures": _grid(found, [((one.row,), [one.why]) for one in found.poor]),
        "Map": _map(found),
        "Unreadable files": _list(broken, 4 * MOST),
    }
    title = f"A look at {found.name}"
    page = document(title, parts, STYLE)
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


def _list(lines: Sequence[str], most: int) -> str:
    """Lines of HTML."""
    items = "".join(f"<li>{line}</li>" for line in lines[:most])
    return f"<ul>{items}</ul>{_more(len(lines), most)}" if lines else ""


def _grid(found: Look, finds: Sequence[tuple[Sequence[int], Sequence[str]]]) -> str:
    """A box for each of some images and what is said of them."""
    boxes = "".join(_box(found, rows, words) for rows, words in finds[:MOST])
    return f'<div class="finds">{boxes}</div>{_more(len(finds), MOST)}' if finds else ""


def _box(found: Look, rows: Sequence[int], words: Sequence[str]) -> str:
    """Pictures, words about them, and where they are; a decision is about the last of them."""
    paths = [as_text(found.images[row].path) for row in rows]
    shown, places = rows[:MOST_OF_A_GROUP], paths[:MOST_OF_A_GROUP]
    pictures = "".join(picture(found.root / found.images[row].path, side=LARGE) for row in shown)
    if len(rows) > len(shown):
        places.append(f"and {len(rows) - len(shown)} more")
    about = {"image": paths[-1], "was": found.labelled_as(rows[-1]), "why": words[-1]}
    data = "".join(f' data-{name}="{escape(text)}"' for name, text in about.items())
    said = "".join(f"<p>{escape(line)}</p>" for line in words)
    where = "".join(f'<p class="quiet">{escape(place)}</p>' for place in places)
    return f'<div class="find"{data}><div class="pictures">{pictures}</div>{said}{where}</div>'


def _more(count: int, shown: int) -> str:
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
