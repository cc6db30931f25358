"""What a person decides about images that `look` found: keep, relabel or drop; a table that `fit` takes.

    image,decision,label,was,why
    cat/7.jpg,relabel,dog,cat,looks like dog

`look` leaves the decision empty, which changes nothing; its page writes the same table with decisions.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pbprompt.apps.audit.audit import Audit
from pbprompt.apps.audit.duplicates import Duplicates
from pbprompt.errors import InputError, suggest
from pbprompt.files import as_csv, as_text, cell_text, csv_rows, read_text, write_text
from pbprompt.vision.images.items import SPLITS, Dataset, Item, some
from pbprompt.vision.images.names import by_any_name, called

HEADER = ("image", "decision", "label", "was", "why")
DECISIONS = ("", "keep", "relabel", "drop")


class Proposal(NamedTuple):
    """An image by its row, why it is listed, and what it may be labelled."""

    row: int
    why: str
    label: str = ""


def to_drop(found: Audit, group: Duplicates) -> tuple[int, ...]:
    """All but one of a picture's files, of which one that is tested on stays; none where labels differ, since
    then a person must say which is right."""
    if found.across_classes(group):
        return ()
    stays = max(group.rows, key=lambda row: (SPLITS.index(found.images[row].split), -row))
    return tuple(row for row in group.rows if row != stays)


def proposals(found: Audit) -> list[Proposal]:
    """Every image that something was found about, each once, the clearest first."""
    listed = [
        Proposal(error.row, f"looks like {found.suggested(error)}", found.suggested(error))
        for error in (() if found.multi_label else found.label_errors)
    ]
    for group in found.duplicates:
        first, *others = group.rows
        words = f"{'the' if group.exact else 'nearly the'} same picture as {found.images[first].path}"
        listed += [Proposal(row, words) for row in others]
    listed += [Proposal(poor.row, poor.why) for poor in found.poor]
    listed += [Proposal(far.row, "least familiar") for far in found.outliers]
    return list({one.row: one for one in reversed(listed)}.values())[::-1]


def write_corrections(found: Audit, path: Path) -> None:
    """The table, with no decision yet; one that holds some, or another table, is not written over."""
    if path.exists() and any(decision for _, _, decision, _ in _read(path)):
        raise InputError(f"{path}: holds decisions: give another name")
    listed = [HEADER]
    for one in proposals(found):
        was = found.labelled_as(one.row) if found.labelled else ""
        listed.append((as_text(found.images[one.row].path), "", one.label, was, as_text(one.why)))
    write_text(path, as_csv(listed))


def _read(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Where each row stands, its image, decision and label."""
    rows = csv_rows(path, read_text(path))
    header = next(rows, ("", [""]))[1]
    if not {*HEADER[:3]} <= {*header}:
        raise InputError(f"{path}: no table of corrections, which `pbprompt look --corrections` writes")
    for where, cells in rows:
        found = dict(zip(header, map(str.strip, cells), strict=False))
        image, decision, label = (cell_text(found.get(name, "")) for name in HEADER[:3])
        yield where, image, decision.lower(), label


def corrected(dataset: Dataset, path: Path) -> tuple[Dataset, str]:
    """The dataset as the table has it, and what was done in words; `drop` and `relabel` in every split.

    A class of which no image is left is none any more.
    """
    classes = by_any_name(dataset.single_label().classes)
    known = {as_text(path) for path in (*(one.path for one in dataset.items), *dict(dataset.skipped))}
    wanted: dict[str, int | None] = {}
    for where, image, decision, label in _read(path):
        if decision not in DECISIONS:
            raise InputError(f"{where}: decision {decision!r}: write keep, relabel or drop")
        if decision in ("", "keep"):
            continue
        if image not in known:
            raise InputError(f"{where}: {image} is not in {dataset.name}: give the data that it was made for")
        if decision == "drop":
            wanted[image] = None
        elif found := called(classes, label):
            wanted[image] = found[0]
        else:
            raise InputError(f"{where}: no class is called {label!r}: {suggest(label, dataset.classes)}")

    label_of = {item.path: wanted.get(as_text(item.path), item.label) for item in dataset.items}
    gone = {item.label for item in dataset.items} - {*label_of.values()}
    left = [label for label in range(len(dataset.classes)) if label not in gone]

    def label_left(item: Item) -> int | None:
        label = label_of[item.path]
        return None if label is None else left.index(label)

    dropped = sum(label is None for label in wanted.values())
    words = f"{path.name}: {len(wanted) - dropped} relabelled, {dropped} dropped"
    if gone:
        words += f"; no image is left of {some(dataset.classes[label] for label in sorted(gone))}"
    remaining = tuple(dataset.classes[label] for label in left)
    return dataset.with_labels(label_left, classes=remaining), words
