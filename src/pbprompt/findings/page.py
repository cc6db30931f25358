"""What was found in words, and as one HTML file that needs nothing besides itself, with small pictures."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pbprompt.data.items import SPLITS
from pbprompt.files import as_text, write_text
from pbprompt.findings.duplicates import Duplicates
from pbprompt.findings.look import Look
from pbprompt.report.html_page import document, picture, table

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
        pictures.append(picture(found.root / image.path))
        places.append(f'<p class="quiet">{escape(as_text(image.path))}</p>')
    if len(rows) > MOST_OF_A_GROUP:
        places.append(f'<p class="quiet">and {len(rows) - MOST_OF_A_GROUP} more</p>')
    said = "".join(f"<p>{line}</p>" for line in words)
    return f'<div class="find"><div class="pictures">{"".join(pictures)}</div>{said}{"".join(places)}</div>'


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
