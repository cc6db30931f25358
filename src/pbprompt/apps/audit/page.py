"""What was found in words, and as one HTML file that needs nothing besides itself, with small pictures."""

from collections import Counter
from pathlib import Path

from pbprompt.apps.audit.audit import Audit
from pbprompt.apps.audit.corrections import to_drop
from pbprompt.apps.audit.duplicates import Duplicates
from pbprompt.apps.pages.html_page import LONGEST_SIDE, page
from pbprompt.files import as_text, write_text
from pbprompt.vision.images.items import SPLITS

LARGE = 480  # pixels, enlarged
MOST, PICTURES = 24, 480  # images of a kind shown so large, and shown at all: a page must open


def write_page(found: Audit, out: Path) -> None:
    """Write the page to the file `out`.

    A find is what is said of images, and for each of these, by row, which decision is suggested.
    """
    errors = [
        (
            [
                f"labelled {found.labelled_as(one.row)} ({one.label_probability:.1%})",
                f"looks like {found.suggested(one)} ({one.suggested_probability:.1%})",
            ],
            {one.row: f"relabel {found.suggested(one)}"},
        )
        for one in found.label_errors
    ]
    copies = [
        (
            duplicate_words(found, group),
            {row: "drop" if row in to_drop(found, group) else "" for row in group.rows},
        )
        for group in worst_duplicates(found)
    ]
    html = page(
        "look.html",
        title=f"A look at {found.name}",
        found=found,
        headline=headline(found),
        sizes=size_words(found),
        classes=class_lines(found) if found.labelled else [],
        decides=found.labelled and not found.multi_label,
        errors=errors,
        copies=copies,
        members=_members(found),
        far=[([f"labelled {found.labelled_as(one.row)}"], {one.row: ""}) for one in found.outliers],
        poor=[([one.why], {one.row: ""}) for one in found.poor],
        sides=[LARGE] * MOST + [LONGEST_SIDE] * (PICTURES - MOST),
    )
    write_text(out, html)


def _members(found: Audit) -> dict[str, list[str]]:
    """The images of each class that overlaps with another: they can all be relabelled."""
    of = {label: found.classes[label] for pair in found.overlaps for label in (pair.first, pair.second)}
    members: dict[str, list[str]] = {name: [] for name in of.values()}
    for image in found.images if of else ():
        if image.label in of:
            members[of[image.label]].append(as_text(image.path))
    return members


def headline(found: Audit) -> str:
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


def size_words(found: Audit) -> str:
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


def class_lines(found: Audit) -> list[tuple[str, int, int, int, int]]:
    """Name, images in train, val and test, and in all; the smallest class first."""
    counted = Counter((label, image.split) for image in found.images for label in image.labels)
    lines = []
    for label, name in enumerate(found.classes):
        train, val, test = (counted[label, split] for split in SPLITS)
        lines.append((name, train, val, test, train + val + test))
    return sorted(lines, key=lambda line: (line[-1], line[0]))


def duplicate_words(found: Audit, group: Duplicates) -> list[str]:
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


def worst_duplicates(found: Audit) -> list[Duplicates]:
    """Duplicates, those that harm in most ways first."""
    return sorted(found.duplicates, key=lambda group: -len(duplicate_words(found, group)))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
