"""Files that list images with their labels: tables, and the split files that the field publishes.

CSV and TSV have a header `image,label[,split][,domain][,description][,parent]`, JSONL the same fields; what
rows describe is their class, and `parent` is the group that it belongs to. A column `labels` in place of
`label` makes a table multi-label: `beach|dog`, an
empty cell for none; an image on several rows has the labels of all. A split file is
{"train": [[path, label, class name], …], "val": …, "test": …}.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.files import as_text, inside, read_json, read_text
from pbprompt.vision.images.build_dataset import Choices, Listed, Skipped, assemble, keep_images, sorted_keys
from pbprompt.vision.images.items import SPLITS, Dataset, Item
from pbprompt.vision.images.stream.folders import SPLIT_WORDS
from pbprompt.vision.images.stream.tables import Fields, table_rows

SEPARATOR = "|"  # between the labels of an image


def open_table(path: Path, root: Path | None, choices: Choices) -> Dataset:
    """The dataset of a .csv, .tsv or .jsonl file, with paths relative to `root` or to its own folder."""
    rows, several = list(read_rows(path, choices.group)), is_multi_label(path)
    bare = [] if several else [(row.path, "without a label") for row in rows if not row.key]
    if bare and len(bare) == len(rows):
        raise InputError(f"{path}: every label is empty: give the classes' names in the column `label`")
    notes = [f"--unlabelled {path} learns from the images without a label"] if bare else []
    labelled = [row for row in rows if row.key or several]
    return listed(path, root or path.parent, labelled, several, choices, bare, notes)


def listed(
    path: Path,
    root: Path,
    rows: list[Listed],
    several: bool,
    choices: Choices,
    bare: Sequence[Skipped] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """The dataset of a file's rows, multi-label where there are `several`; `bare`: those without a label."""
    kept, skipped = keep_images(root, _one_an_image(path, rows, several))
    home = root.absolute()
    away = [row.path for row in kept if row.path.startswith("/") and not Path(row.path).is_relative_to(home)]
    if away:
        notes = [*notes, f"{len(away)} images lie outside {as_text(str(root))}, such as {as_text(away[0])}"]
    dataset = assemble(
        path.stem,
        root,
        kept,
        choices,
        where=str(path),
        notes=notes,
        skipped=[*skipped, *bare],
        labels_in=_labels if several else None,
    )
    return dataset if several else replace(dataset, descriptions=_descriptions(kept, rows, dataset))


def _descriptions(kept: list[Listed], rows: list[Listed], dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    """Each class that rows describe, with their sentences, each once; `kept` are those with an image."""
    classes = dict(zip(sorted_keys({row.key for row in kept}), dataset.classes, strict=True))
    told: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.description and row.key in classes:
            told.setdefault(classes[row.key], {})[" ".join(row.description.split())] = None
    return tuple((name, *sentences) for name, sentences in told.items())


def _labels(cell: str) -> set[str]:
    """A label that is in a cell twice is there once."""
    return {part.strip() for part in cell.split(SEPARATOR)} - {""}


def _one_an_image(path: Path, rows: list[Listed], several: bool) -> list[Listed]:
    """A row an image, perhaps of several labels; two that contradict each other are an error, as is half a
    split."""
    first: dict[str, Listed] = {}
    for row in rows:
        other = first.setdefault(row.path, row)
        if several and other is not row:
            row = replace(row, key=other.key + SEPARATOR + row.key)
            first[row.path] = other = replace(other, key=row.key)
        if other != row:
            what = "label" if other.key != row.key else "split or domain"
            hint = ", or list both in a column 'labels'" if other.key != row.key else ""
            raise InputError(
                f"{path}: {row.path} is listed twice with a different {what}: keep one line{hint}"
            )
    unsplit = [row for row in rows if not row.split]
    if unsplit and len(unsplit) < len(rows):
        raise InputError(f"{path}: {unsplit[0].path} has no split but others have: give all or none a split")
    return list(first.values())


def is_multi_label(path: Path) -> bool:
    """Whether a table has a column `labels`, and none for a single label (which then is all that counts)."""
    return any("labels" in fields and "label" not in fields for _, fields in islice(_rows(path), 1))


def read_rows(path: Path, group: str = "") -> Iterator[Listed]:
    """The rows of a table of either kind; of a multi-label one, a row's key is its whole cell. `group`: the
    column that names a photograph's series, if any.

    A row without a label has an empty key.
    """
    field = ""
    for where, fields in _rows(path, group):
        field = field or ("labels" if "labels" in fields and "label" not in fields else "label")
        image, key = (_text(fields, name, where).strip() for name in ("image", field))
        word, domain, told, parent = (
            _text(fields, name, where, "").strip() for name in ("split", "domain", "description", "parent")
        )
        if word and word.lower() not in SPLIT_WORDS:
            raise InputError(f"{where}: split {word.lower()!r} is unknown: write train, val or test")
        series = _text(fields, group, where, "").strip() if group else ""
        split = SPLIT_WORDS.get(word.lower(), "")
        above = (" ".join(parent.split()),) if parent else ()
        yield Listed(inside(image, where, absolute=True), key, split, domain, series, told, above)


def _rows(path: Path, also: str = "") -> Iterator[tuple[str, Fields]]:
    for where, fields in table_rows(path, io.StringIO(read_text(path), newline=""), labelled=True, also=also):
        if isinstance(fields, InputError):
            raise fields
        yield where, fields


def _text(fields: Fields, field: str, where: str, default: str | None = None) -> str:
    """A cell of JSON may be anything: a whole number is a label, a list several of them."""
    cell = fields.get(field)
    if cell is None:
        cell = default
    if field == "label" and type(cell) is int:
        return str(cell)
    if field == "labels" and isinstance(cell, list):
        for label in cell:
            if not isinstance(label, str) or SEPARATOR in label:
                shown = json.dumps(label)[:40]
                raise InputError(f"{where}: field 'labels' holds {shown}: give texts without {SEPARATOR!r}")
        return SEPARATOR.join(cell)
    if not isinstance(cell, str):
        raise InputError(f"{where}: field {field!r} is {json.dumps(cell)[:40]}: give it as text")
    return cell


def read_split_json(path: Path) -> list[tuple[str, str, int, str]]:
    """Split, image, label and class name of each entry of a split file, all checked."""
    value = read_json(path)
    if not isinstance(value, dict) or not any(split in value for split in SPLITS):
        raise InputError(
            f"{path}: no 'train', 'val' or 'test' list in it: give a split file, or what Label Studio, "
            "FiftyOne or COCO write"
        )
    listed = []
    for split in SPLITS:
        entries = value.get(split) or []
        if not isinstance(entries, list):
            raise InputError(f"{path}: {split!r} is not a list: write [[path, label, name], …]")
        for place, entry in enumerate(entries):
            where = f"{path} {split}[{place}]"
            match entry:
                case [str(image), int(label), str(name)] if not isinstance(label, bool) and label >= 0:
                    listed.append((split, inside(image, where), label, name))
                case _:
                    shown = json.dumps(entry)[:60]
                    raise InputError(f"{where}: {shown} is not [path, label, name]: correct the entry")
    return listed


def split_dataset(
    path: Path,
    root: Path | None,
    name: str,
    naming: Callable[[Sequence[str]], tuple[str, ...]],
    template: str,
    prefix: str = "",
) -> Dataset:
    """The dataset of a split file, labels and order as in the file; `naming` makes class names of what it
    calls them, and `prefix` is put before every path.

    Paths are relative to `root`; without one, to the file's own folder or the first folder in it that holds
    the first image, since published files lie beside the image folder.
    """
    listed = read_split_json(path)
    keys: dict[int, str] = {}
    for _, image, label, key in listed:
        if keys.setdefault(label, key) != key:
            raise InputError(f"{path}: label {label} is {keys[label]!r} and {key!r} ({image}): keep one name")
    if sorted(keys) != list(range(len(keys))) or not keys:
        missing = next((label for label in range(len(keys)) if label not in keys), 0)
        raise InputError(f"{path}: no item has label {missing}: labels must run from 0 without gaps")
    if root is None:
        first = listed[0][1]
        beside = [path.parent, *sorted(child for child in path.parent.iterdir() if child.is_dir())]
        root = next((folder for folder in beside if (folder / first).is_file()), None)
        if root is None:
            raise InputError(
                f"{path}: its first image {first} is not beside it: name the image folder as root"
            )
    folder = f"{prefix}/" if prefix else ""
    train, val, test = (
        tuple(Item(folder + image, label) for part, image, label, _ in listed if part == split)
        for split in SPLITS
    )
    classes = naming([keys[label] for label in range(len(keys))])
    return Dataset(as_text(name), root, classes, train, val, test, template)
