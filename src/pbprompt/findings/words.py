"""What was found in words, for the terminal and for the page."""

from collections import Counter

from pbprompt.data.items import SPLITS
from pbprompt.findings.duplicates import Duplicates
from pbprompt.findings.look import Look


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


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
