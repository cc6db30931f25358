"""Multi-label tables: a column `labels`, with `beach|dog` in a cell; an empty cell: none.

An image may also be on several rows: it has the labels of all of them. A table says so itself, by its column
`labels`: one with a column `label` is single-label, whatever is in it.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbprompt.data.assemble import Choices, Row, keep_images, sorted_keys
from pbprompt.data.items import SPLITS, Dataset, Item
from pbprompt.data.tables import SEPARATOR, check_splits, read_rows
from pbprompt.errors import InputError

TRAIN_SHARE = (
    0.7  # of a table without splits; there is no val, since thresholds come from the training images
)


def open_multi_label(path: Path, root: Path | None, choices: Choices) -> Dataset:
    """The dataset of a .csv, .tsv or .jsonl table with a column `labels`.

    Paths are relative to `root` or to the table's own folder. Without a column `split`, 70 % of the images of
    each label train and the others test, by the seed.
    """
    root = root or path.parent
    rows, skipped = keep_images(root, _gathered(path, list(read_rows(path))))
    if not rows:
        why = f" ({skipped[0][0]} is {skipped[0][1]})" if skipped else ""
        raise InputError(f"{path}: no images in it{why}: check the folder the paths are relative to")
    keys = sorted_keys({key for row in rows for key in _labels(row.key)})
    if not keys:
        raise InputError(f"{path}: no image has a label: fill in the column 'labels', as in beach|dog")
    place = {key: number for number, key in enumerate(keys)}
    images = {row.path: tuple(place[key] for key in sorted_keys(_labels(row.key))) for row in rows}
    splits, notes = {row.path: row.split for row in rows}, []
    if not rows[0].split:
        splits = seeded_split(images, choices.seed)
        notes = [f"Split 70/30 % per label with seed {choices.seed}"]
    elif "test" not in splits.values() and "val" in splits.values():
        splits = {path: "test" if split == "val" else split for path, split in splits.items()}
        notes = ["No test split: val is the test set"]
    train, val, test = (
        tuple(Item(one, 0, labels=images[one]) for one in sorted(images) if splits[one] == name)
        for name in SPLITS
    )
    return Dataset(
        path.stem,
        root,
        choices.names(keys, str(path)),
        train,
        val,
        test,
        template=choices.template,
        notes=tuple(notes),
        skipped=tuple(skipped),
        multi_label=True,
    )


def _labels(cell: str) -> set[str]:
    """A label that is in a cell twice is there once."""
    return {part.strip() for part in cell.split(SEPARATOR)} - {""}


def _gathered(path: Path, rows: Sequence[Row]) -> list[Row]:
    """One row per image, with the labels of all its rows."""
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
