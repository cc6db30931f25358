"""From rows (path, labels, split, domain) to a dataset: labels, names and, where there is none, a split."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, suggest
from pbprompt.files import as_text, is_special
from pbprompt.vision.images import names
from pbprompt.vision.images.images import HEIC, head_of, is_heic, looks_like_image
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, SPLITS, Dataset, Item
from pbprompt.vision.images.series import EXIF, FOLDER, folder_of, in_series, moment_of

SEPARATOR = "|"  # between the labels of an image
Skipped = tuple[str, str]
Shares = tuple[float, float]  # held out for validation and for testing
NONE: Shares = (0.0, 0.0)
OF_A_DRAW: Shares = (0.2, 0.3)  # where few images are drawn to train on, the others are there to test by


@dataclass(frozen=True, slots=True)
class Listed:
    """One image as a source lists it: the class is still a folder name or a label, the split may be open."""

    path: str
    key: str
    split: str = ""
    domain: str = ""
    group: str = ""
    description: str = field(default="", compare=False)  # of its class
    above: tuple[str, ...] = field(default=(), compare=False)  # its class's groups, the narrowest first


@dataclass(frozen=True)
class Choices:
    seed: int = 1
    template: str = DEFAULT_TEMPLATE
    mapping: dict[str, str] | None = None  # the names to read, by label
    mapping_from: str = ""
    held_out: Shares = NONE  # of each class, where the data has no split of its own
    fewest: int = 2  # classes
    alike: bool = False  # whether two of these may have one name
    group: str = ""  # what makes a series: a column, folder or exif
    series: Mapping[str, str] = field(default_factory=dict)  # found already, by path
    nested: bool = False  # of folders within folders the innermost are the classes

    @classmethod
    def of(cls, classes_file: str | Path | None, **others: Any) -> "Choices":
        mapping = None if classes_file is None else names.read_classes_file(classes_file)
        return cls(mapping=mapping, mapping_from=str(classes_file), **others)

    def names(
        self, keys: Sequence[str], where: str, naming: Callable[[str], str] = names.from_label
    ) -> tuple[str, ...]:
        """The labels, which are the keys, with names as `naming` reads them or as the file of names has them;
        a key of the file that no class has is an error."""
        named = [as_text(naming(key)) for key in keys]
        if self.mapping is not None:
            if unknown := sorted(set(self.mapping) - set(keys)):
                near = suggest(unknown[0], sorted(keys))
                raise InputError(f"{self.mapping_from}: no class {unknown[0]!r} in the data: {near}")
            named = [self.mapping.get(key, name) for key, name in zip(keys, named, strict=True)]
        if not self.alike:
            names.check_distinct(keys, named, where)
        labels = list(map(as_text, keys))
        return names.with_names(labels, dict(zip(labels, named, strict=True)))


def labels_of(cell: str) -> set[str]:
    """The labels of an image of a multi-label dataset; one that is in a cell twice is there once."""
    return {part.strip() for part in cell.split(SEPARATOR)} - {""}


def keep_images(root: Path, rows: Iterable[Listed]) -> tuple[list[Listed], list[Skipped]]:
    """The rows whose file is there and begins as an image does, and the others with the reason."""
    kept: list[Listed] = []
    skipped: list[Skipped] = []
    for row in rows:
        file = root / row.path
        if looks_like_image(file):
            kept.append(row)
        elif not file.is_file():
            skipped.append((row.path, "not a regular file" if is_special(file) else "not found"))
        elif file.stat().st_size == 0:
            skipped.append((row.path, "empty"))
        else:
            skipped.append((row.path, HEIC if is_heic(head_of(file)) else "not an image"))
    return kept, skipped


def build_dataset(
    name: str,
    root: Path,
    rows: Sequence[Listed],
    choices: Choices,
    *,
    where: str,
    naming: Callable[[str], str] = names.from_label,
    notes: Iterable[str] = (),
    skipped: Sequence[Skipped] = (),
    remedy: str = "check the folder the paths are relative to",
    several: bool = False,
) -> Dataset:
    """The dataset of the rows; classes are sorted by key, numbers as numbers, items by path.

    Of a multi-label one a row's key is a cell of any number of labels: `several`.
    """
    if not rows:
        left_out = f" ({len(skipped)} files left out: {skipped[0][0]} is {skipped[0][1]})" if skipped else ""
        raise InputError(f"{where}: no images in it{left_out}: {remedy}")
    cells = {row.key for row in rows}
    keys = sorted_keys(set[str]().union(*map(labels_of, cells)) if several else cells)
    if not keys:
        raise InputError(f"{where}: no image has a label: fill in the column 'labels', as in beach|dog")
    if len(keys) < choices.fewest and not several:
        raise InputError(f"{where}: only one class, {keys[0]!r}: a classifier needs at least two")
    class_names = choices.names(keys, where, naming)
    numbers = {key: label for label, key in enumerate(keys)}

    def item(row: Listed) -> Item:
        if not several:
            return Item(row.path, numbers[row.key], row.domain, group=row.group)
        labels = tuple(numbers[key] for key in sorted_keys(labels_of(row.key)))
        return Item(row.path, 0, group=row.group, labels=labels)

    notes, held_out = list(notes), NONE
    if choices.group == FOLDER:
        rows = [replace(row, group=folder_of(row.path, row.key)) for row in rows]
    elif choices.group == EXIF:
        rows = [replace(row, group=moment_of(root / row.path)) for row in rows]
    elif choices.series:
        rows = [replace(row, group=choices.series.get(row.path, "")) for row in rows]
    split = {row.path: row.split for row in rows}
    if {*split.values()} <= {"", "train"}:
        held_out, split = choices.held_out, dict.fromkeys(split, "train")
        if held_out[1] and several:
            split = split_labels(map(item, rows), choices.seed, held_out[1])
            shares, each = [1 - held_out[1], held_out[1]], "label"
        elif held_out[1]:
            split = split_classes(rows, choices.seed, *held_out)
            shares = [1 - sum(held_out), *held_out]
            each = "class and domain" if any(row.domain for row in rows) else "class"
        if held_out[1]:
            parts = "/".join(f"{100 * share:.0f}" for share in shares)
            notes.append(f"Split {parts} % per {each} with seed {choices.seed}")
    if "test" not in split.values() and "val" in split.values():
        split = {path: "test" if part == "val" else part for path, part in split.items()}
        notes.append("No test split: val is the test set")
    rows = sorted(rows, key=lambda row: row.path)
    train, val, test = (tuple(item(row) for row in rows if split[row.path] == part) for part in SPLITS)
    return Dataset(
        as_text(name),
        root,
        class_names,
        train,
        val,
        test,
        choices.template,
        notes=tuple(notes),
        skipped=tuple(skipped),
        multi_label=several,
        hierarchy=() if several else _hierarchy(rows, dict(zip(keys, class_names, strict=True)), where),
        held_out=held_out,
    )


def _hierarchy(rows: Sequence[Listed], classes: dict[str, str], where: str) -> tuple[tuple[str, str], ...]:
    """What each class, and each group, belongs to, where rows say so."""
    found: dict[str, str] = {}
    for row in rows:
        for one, group in pairwise((classes[row.key], *row.above)):
            if found.setdefault(one, group) != group:
                raise InputError(
                    f"{where}: {one!r} is in {found[one]!r} and in {group!r}: give one group to each class, "
                    "and to each group, or call the column otherwise than 'parent'"
                )
    return tuple(found.items())


def sorted_keys(keys: Iterable[str]) -> list[str]:
    """Sorted by code point, or as numbers where all are numbers (so that 10 comes after 9)."""
    keys = list(keys)
    if all(key.isascii() and key.isdigit() for key in keys):
        return sorted(keys, key=lambda key: (int(key), key))
    return sorted(keys)


def split_classes(rows: Sequence[Listed], seed: int, val: float, test: float) -> dict[str, str]:
    """The split of each image: shares of each class and domain are val and test, the rest is train; a series
    goes whole where its first image does.

    Each class is shuffled by a generator of its own, seeded with (seed, domain, class), so that adding a
    class leaves the others' splits alone. A class of one image trains; one of two or three also tests.
    """
    classes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        classes.setdefault((row.domain, row.key), []).append(row.path)
    group = {row.path: row.group for row in rows}
    split: dict[str, str] = {}
    taken: dict[str, str] = {}  # by series
    for (domain, key), paths in classes.items():
        source = random.Random(as_text(f"{seed}\n{domain}\n{key}"))
        paths = sorted(paths)
        paths = [*chain.from_iterable(in_series(paths, [group[path] for path in paths], source))]
        train = max(1, min(round((1 - (val + test)) * len(paths)), len(paths) - 1))
        middle = train + max(0, min(round(val * len(paths)), len(paths) - train - 1))
        for place, path in enumerate(paths):
            split[path] = "train" if place < train else "val" if place < middle else "test"
            if group[path]:
                split[path] = taken.setdefault(group[path], split[path])
    return split


def split_labels(items: Iterable[Item], seed: int, test: float) -> dict[str, str]:
    """The split of each image: of each label, rarest first, a share of the images that have none yet is test.

    So a rare label is in both, as far as it can be; one of a single image trains. Each label is shuffled by a
    generator of its own. There is no val, since thresholds come from the training images.
    """
    of_label: dict[int, list[str]] = {}
    for item in items:
        for label in item.labels or (-1,):
            of_label.setdefault(label, []).append(item.path)
    split: dict[str, str] = {}
    for label, paths in sorted(of_label.items(), key=lambda pair: (len(pair[1]), pair[0])):
        left = sorted(path for path in paths if path not in split)
        random.Random(f"{seed}\n{label}").shuffle(left)
        train = max(1, round((1 - test) * len(left)))
        split |= {path: "train" if place < train else "test" for place, path in enumerate(left)}
    return split
