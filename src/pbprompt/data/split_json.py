"""Split files as the field publishes them: {"train": [[path, label, class name], …], "val": …, "test": …}."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pbprompt.data import names
from pbprompt.data.assemble import Choices
from pbprompt.data.items import SPLITS, Dataset, Item
from pbprompt.errors import InputError
from pbprompt.files import inside, read_text

Triple = tuple[str, int, str]


def read_split_json(path: str | Path) -> dict[str, list[Triple]]:
    """The three lists of a split file, every entry checked; an absent list is empty."""
    path = Path(path)
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not JSON ({error}): fetch the file again") from None
    if not isinstance(value, dict) or not any(split in value for split in SPLITS):
        raise InputError(f"{path}: no 'train', 'val' or 'test' list in it: give a split file")
    return {split: _triples(path, split, value.get(split) or []) for split in SPLITS}


def _triples(path: Path, split: str, entries: Any) -> list[Triple]:
    if not isinstance(entries, list):
        raise InputError(f"{path}: {split!r} is not a list: write [[path, label, name], …]")
    triples = []
    for place, entry in enumerate(entries):
        where = f"{path} {split}[{place}]"
        match entry:
            case [str(image), int(label), str(name)] if not isinstance(label, bool) and label >= 0:
                triples.append((inside(image, where), label, name))
            case _:
                shown = json.dumps(entry)[:60]
                raise InputError(f"{where}: {shown} is not [path, label, name]: correct the entry")
    return triples


def split_dataset(
    path: Path,
    *,
    name: str,
    root: Path,
    prefix: str = "",
    rename: Callable[[str], str] = names.from_label,
    template: str = Choices.template,
) -> Dataset:
    """The dataset of a split file, labels and order as in the file; `prefix` is put before every path."""
    parts = read_split_json(path)
    keys: dict[int, str] = {}
    for split in SPLITS:
        for image, label, key in parts[split]:
            if keys.setdefault(label, key) != key:
                raise InputError(
                    f"{path}: label {label} is {keys[label]!r} and {key!r} ({image}): keep one name"
                )
    if sorted(keys) != list(range(len(keys))) or not keys:
        missing = next((label for label in range(len(keys)) if label not in keys), 0)
        raise InputError(f"{path}: no item has label {missing}: labels must run from 0 without gaps")
    class_names = tuple(rename(keys[label]) for label in range(len(keys)))
    train, val, test = (
        tuple(Item(f"{prefix}/{image}" if prefix else image, label) for image, label, _ in parts[split])
        for split in SPLITS
    )
    return Dataset(
        name=name, root=root, classes=class_names, train=train, val=val, test=test, template=template
    )


def open_split_json(path: Path, root: Path | None, choices: Choices) -> Dataset:
    """The dataset of a split file a user names.

    Its paths are relative to `root`; without one, to the file's own folder or the first folder in it that
    holds the first image, since published files lie beside the image folder.
    """
    first = next((triple[0] for part in read_split_json(path).values() for triple in part), None)
    if root is None and first is not None:
        beside = [path.parent, *sorted(child for child in path.parent.iterdir() if child.is_dir())]
        root = next((folder for folder in beside if (folder / first).is_file()), None)
        if root is None:
            raise InputError(
                f"{path}: its first image {first} is not beside it: name the image folder as root"
            )
    dataset = split_dataset(
        path, name=path.stem, root=root or path.parent, rename=str, template=choices.template
    )
    keys = dataset.classes
    class_names = [names.from_label(key) for key in keys]
    if choices.mapping is not None:
        class_names = names.apply_mapping(keys, class_names, choices.mapping, choices.mapping_from)
    names.check_distinct(keys, class_names, str(path))
    return replace(dataset, classes=tuple(class_names))
