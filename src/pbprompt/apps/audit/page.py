"""What was found in words, and as one HTML file that needs nothing besides itself, with small pictures."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pbprompt.apps.audit.audit import Audit
from pbprompt.apps.audit.corrections import to_drop
from pbprompt.apps.audit.duplicates import Duplicates
from pbprompt.apps.audit.leave_one_out import LabelError
from pbprompt.apps.pages.html_page import LONGEST_SIDE, page
from pbprompt.files import as_text, write_text
from pbprompt.vision.images.items import SPLITS

LARGE = 480  # pixels, enlarged
MOST, PICTURES = 24, 480  # images of a kind shown so large, and shown at all: a page must open


def write_page(found: Audit, out: Path) -> None:
    """Write the page to the file `out`."""
    html = page(
        "look.html",
        title=f"A look at {found.name}",
        root=found.root,
        headline=headline(found),
        sizes=size_words(found),
        notes=[f"{note}." for note in found.notes],
        classes=class_lines(found) if found.labelled else [],
        decides=found.labelled and not found.multi_label,
        errors=_finds(
            found,
            [([one.row], _mislabelled(found, one)) for one in found.label_errors],
            {one.row: f"relabel {found.suggested(one)}" for one in found.label_errors},
        ),
        copies=_finds(
            found,
            [(group.rows, duplicate_words(found, group)) for group in worst_duplicates(found)],
            {row: "drop" for group in found.duplicates for row in to_drop(found, group)},
        ),
        pairs=[
            (
                found.classes[pair.first],
                found.classes[pair.second],
                f"{pair.confused} of {pair.images} images ({pair.share:.0%}) are taken for the other",
            )
            for pair in found.overlaps
        ],
        members=_members(found),
        far=_finds(
            found, [([one.row], [f"labelled {found.labelled_as(one.row)}"]) for one in found.outliers]
        ),
        poor=_finds(found, [([one.row], [one.why]) for one in found.poor]),
        dots=_dots(found),
        unreadable=[
            {"images": [{"path": as_text(path), "was": "", "suggested": "drop", "side": 0}], "words": [why]}
            for path, why in found.unreadable
        ],
        choices=found.classes,
    )
    write_text(out, html)


def _mislabelled(found: Audit, one: LabelError) -> list[str]:
    return [
        f"labelled {found.labelled_as(one.row)} ({one.label_probability:.1%})",
        f"looks like {found.suggested(one)} ({one.suggested_probability:.1%})",
    ]


def _finds(
    found: Audit,
    listed: Sequence[tuple[Sequence[int], Sequence[str]]],
    suggested: Mapping[int, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Images by row, what is said of them, and for each what it is, which decision is suggested, and on how
    many pixels it is shown."""
    count = itertools.count()
    return [
        {
            "words": words,
            "images": [
                {
                    "file": (image := found.images[row]).path,
                    "path": as_text(image.path),
                    "was": found.labelled_as(row),
                    "suggested": suggested.get(row, ""),
                    "side": LARGE if (at := next(count)) < MOST else LONGEST_SIDE * (at < PICTURES),
                }
                for row in rows
            ],
        }
        for rows, words in listed
    ]


def _members(found: Audit) -> dict[str, list[str]]:
    """The images of each class that overlaps with another: they can all be relabelled."""
    of = {label: found.classes[label] for pair in found.overlaps for label in (pair.first, pair.second)}
    members: dict[str, list[str]] = {name: [] for name in of.values()}
    for image in found.images if of else ():
        if image.label in of:
            members[of[image.label]].append(as_text(image.path))
    return members


def _dots(found: Audit) -> Iterator[tuple[str, str, str, str]]:
    """Path, hue and place of every image on the map."""
    for image, (x, y) in zip(found.images, found.places, strict=True):
        hue = (image.labels or (0,))[0] * 137.5 % 360  # neighbours in the list get unlike colours
        yield as_text(image.path), f"{hue:.0f}", f"{20 + 960 * x:.0f}", f"{20 + 560 * y:.0f}"


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
