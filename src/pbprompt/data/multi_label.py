"""Tables of several labels an image: a column `labels`, with `beach|dog` in a cell; an empty cell: none.

An image may also be on several rows: it has the labels of all of them. A table says so itself, by its column
`labels`: one with a column `label` has one label an image, whatever is in it.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pbprompt.data import names
from pbprompt.data.assemble import Row, keep_images, sorted_keys
from pbprompt.data.items import DEFAULT_TEMPLATE, SPLITS, some
from pbprompt.data.tables import SEPARATOR, SUFFIXES, check_splits, has_several_labels, read_rows
from pbprompt.errors import InputError

TRAIN_SHARE = (
    0.7  # of a table without splits; there is no val, since thresholds come from the training images
)


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image: its path relative to the root (with `/`), and the places of its labels among the classes."""

    path: str
    labels: tuple[int, ...]


@dataclass(frozen=True)
class MultiLabelDataset:
    """Images in three splits with the names of the classes that each may have several of, or none."""

    name: str
    root: Path
    classes: tuple[str, ...]
    train: tuple[LabelledImage, ...] = ()
    val: tuple[LabelledImage, ...] = ()
    test: tuple[LabelledImage, ...] = ()
    template: str = DEFAULT_TEMPLATE
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def split(self, name: str) -> tuple[LabelledImage, ...]:
        """The images of "train", "val" or "test"."""
        if name not in SPLITS:
            raise InputError(f"no split is named {name!r}: use train, val or test")
        images: tuple[LabelledImage, ...] = getattr(self, name)
        return images

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over class names and every split's paths and labels; independent of the root."""
        facts: list[Any] = [list(self.classes)]
        facts += [[[one.path, *one.labels] for one in self.split(name)] for name in SPLITS]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def describe(self) -> str:
        """One paragraph: classes, splits, labels an image, how it was read, what was left out."""
        images = [one for name in SPLITS for one in self.split(name)]
        counts = ", ".join(f"{len(self.split(name)):,} {name}" for name in SPLITS)
        mean, bare = sum(len(one.labels) for one in images) / len(images), sum(not i.labels for i in images)
        text = [
            f"{self.name}: {len(self.classes):,} labels ({some(self.classes)}), {mean:.2f} an image, "
            f"{bare:,} images without any; {counts}."
        ]
        text += [f"{note}." for note in self.notes]
        if self.skipped:
            path, why = self.skipped[0]
            text.append(f"Skipped {len(self.skipped):,} files ({path} is {why}).")
        return " ".join(text)


def is_multi_label(source: str | Path) -> bool:
    """Whether a dataset's source is a table of several labels an image."""
    path = Path(source).expanduser()
    return path.suffix.lower() in SUFFIXES and path.is_file() and has_several_labels(path)


def open_multi_label(
    path: str | Path,
    root: str | Path | None = None,
    *,
    classes_file: str | Path | None = None,
    template: str | None = None,
    seed: int = 1,
) -> MultiLabelDataset:
    """The dataset of a .csv, .tsv or .jsonl table with a column `labels`.

    Paths are relative to `root` or to the table's own folder. `classes_file` renames labels. Without a column
    `split`, 70 % of the images of each label train and the others test, by `seed`.
    """
    path = Path(path).expanduser()
    if not is_multi_label(path):
        raise InputError(f"{path}: no table with a column 'labels': name the column of several labels so")
    root = path.parent if root is None else Path(root).expanduser()
    rows, skipped = keep_images(root, _gathered(path, list(read_rows(path))))
    if not rows:
        why = f" ({skipped[0][0]} is {skipped[0][1]})" if skipped else ""
        raise InputError(f"{path}: no images in it{why}: check the folder the paths are relative to")
    keys = sorted_keys({key for row in rows for key in _labels(row.key)})
    if not keys:
        raise InputError(f"{path}: no image has a label: fill in the column 'labels', as in beach|dog")
    class_names = [names.from_label(key) for key in keys]
    if classes_file is not None:
        mapping = names.read_classes_file(classes_file)
        class_names = names.apply_mapping(keys, class_names, mapping, str(classes_file))
    names.check_distinct(keys, class_names, str(path))
    place = {key: number for number, key in enumerate(keys)}
    images = {row.path: tuple(place[key] for key in sorted_keys(_labels(row.key))) for row in rows}
    splits, notes = {row.path: row.split for row in rows}, []
    if not rows[0].split:
        splits = seeded_split(images, seed)
        notes = [f"Split 70/30 % a label with seed {seed}"]
    elif "test" not in splits.values() and "val" in splits.values():
        splits = {path: "test" if split == "val" else split for path, split in splits.items()}
        notes = ["No test split: val is the test set"]
    parts = {
        name: tuple(LabelledImage(one, images[one]) for one in sorted(images) if splits[one] == name)
        for name in SPLITS
    }
    return MultiLabelDataset(
        path.stem,
        root,
        tuple(class_names),
        **parts,
        template=template or DEFAULT_TEMPLATE,
        notes=tuple(notes),
        skipped=tuple(skipped),
    )


def _labels(cell: str) -> set[str]:
    """A label that is in a cell twice is there once."""
    return {part.strip() for part in cell.split(SEPARATOR)} - {""}


def _gathered(path: Path, rows: Sequence[Row]) -> list[Row]:
    """One row an image, with the labels of all its rows."""
    check_splits(path, rows)
    first: dict[str, Row] = {}
    for row in rows:
        other = first.setdefault(row.path, row)
        if other.split != row.split:
            raise InputError(
                f"{path}: {row.path} is in two splits, {other.split} and {row.split}: choose one"
            )
        if other is not row:
            first[row.path] = Row(row.path, other.key + SEPARATOR + row.key, row.split)
    return list(first.values())


def seeded_split(images: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, str]:
    """The split of each image: of each label, rarest first, the images that have none yet are shared out.

    So a rare label is in both, as far as it can be; one of a single image trains. Each label is shuffled by a
    generator of its own.
    """
    of_label: dict[int, list[str]] = {}
    for path, labels in images.items():
        for label in labels or (-1,):
            of_label.setdefault(label, []).append(path)
    split: dict[str, str] = {}
    for label, paths in sorted(of_label.items(), key=lambda pair: (len(pair[1]), pair[0])):
        left = sorted(path for path in paths if path not in split)
        random.Random(f"{seed}\n{label}").shuffle(left)
        train = max(1, round(TRAIN_SHARE * len(left)))
        split |= {path: "train" if place < train else "test" for place, path in enumerate(left)}
    return split
