"""How each benchmark is read from its folder: its `reader` and `rename` name functions here."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pbprompt.errors import BrokenInstallError, InputError
from pbprompt.files import csv_rows, inside, read_text
from pbprompt.vision.images.build_dataset import OF_A_DRAW, Choices, Listed, build_dataset
from pbprompt.vision.images.items import SPLITS, Dataset, Item
from pbprompt.vision.images.label_files import split_dataset
from pbprompt.vision.images.locations import files_in, subfolders
from pbprompt.vision.images.names import from_folder, from_label

if TYPE_CHECKING:
    from pbprompt.vision.images.catalog import Benchmark

Parts = dict[str, tuple[Item, ...]]
IMAGENET = {"train": "images/train", "test": "images/val"}


def year_first(name: str) -> str:
    """StanfordCars: `Acura TL Sedan 2012` → `2012 Acura TL Sedan`."""
    return re.sub(r"^(.+) (\d{4})$", r"\2 \1", name)


def reversed_path(name: str) -> str:
    """SUN397: `a/airplane_cabin/indoor` → `indoor airplane_cabin`, without the initial letter's folder."""
    parts = name.strip("/").split("/")
    return " ".join(reversed(parts[1:] if len(parts[0]) == 1 and parts[1:] else parts))


def split_capitals(name: str) -> str:
    """UCF101: `ApplyEyeMakeup` → `Apply Eye Makeup`; names already split stay."""
    return name if "_" in name or " " in name else " ".join(re.findall("[A-Z][^A-Z]*", name)) or name


RENAMES = {rule.__name__: rule for rule in (year_first, reversed_path, split_capitals, from_label)}


def split_file(benchmark: "Benchmark", folder: Path) -> Dataset:
    """A published split file, the benchmark's marker, whose paths are relative to `images`."""
    rename = RENAMES[benchmark.rename or "from_label"]
    return split_dataset(
        folder / benchmark.marker,
        folder,
        benchmark.name,
        lambda keys: tuple(from_label(benchmark.names.get(key) or rename(key)) for key in keys),
        benchmark.template,
        prefix=benchmark.images,
    )


def aircraft(benchmark: "Benchmark", folder: Path) -> Dataset:
    """The official lists: lines of `images_variant_<split>.txt` are "<image> <variant>", which may hold
    spaces; labels follow `variants.txt`."""
    variants = [line for _, line in _lines(folder / "variants.txt")]
    labels = {variant: label for label, variant in enumerate(variants)}

    def item(line: str, where: str) -> Item:
        image, _, variant = line.partition(" ")
        if variant not in labels:
            raise InputError(f"{where}: {variant!r} is not in variants.txt: fetch both again")
        return Item(f"images/{inside(image, where)}.jpg", labels[variant])

    lists = {split: folder / f"images_variant_{split}.txt" for split in SPLITS}
    return _dataset(benchmark, folder, map(from_label, variants), _listed(lists, item))


def imagenet(benchmark: "Benchmark", folder: Path) -> Dataset:
    """`images/train/<wnid>`, and `images/val/<wnid>` as the test set, with the names of `classnames.txt`."""
    names = imagenet_names(folder)
    parts = {split: folder_items(folder, images, list(names)) for split, images in IMAGENET.items()}
    return _dataset(benchmark, folder, names.values(), parts)


def wordnet_folders(benchmark: "Benchmark", folder: Path) -> Dataset:
    """A test set of ImageNet's: folders are WordNet ids, and the classes those that have one."""
    names = imagenet_names(folder)
    keys = [name for name in subfolders(folder / benchmark.marker) if name in names]
    parts = {"test": folder_items(folder, benchmark.marker, keys)}
    return _dataset(benchmark, folder, (names[key] for key in keys), parts)


def numbered_folders(benchmark: "Benchmark", folder: Path) -> Dataset:
    """A test set of ImageNet's whose folders are the 1,000 places of its sorted ids."""
    names = imagenet_names(folder)
    parts = {"test": folder_items(folder, benchmark.marker, list(map(str, range(len(names)))))}
    return _dataset(benchmark, folder, names.values(), parts)


def pacs(benchmark: "Benchmark", folder: Path) -> Dataset:
    """7 classes in 4 styles (`<domain>/<class>/`); photographs are tuned on.

    The field publishes no split of this layout, so each class of each domain is split 50/20/30 % by the
    seeded rule of class folders, always with seed 1.
    """
    rows = [
        Listed(f"{domain}/{name}/{path}", name, domain=domain)
        for domain in benchmark.domains
        if (folder / domain).is_dir()
        for name in subfolders(folder / domain)
        for _, path in files_in(folder / domain / name)
    ]
    choices = Choices(seed=1, template=benchmark.template, held_out=OF_A_DRAW)
    return replace(build_dataset(benchmark.name, folder, rows, choices, where=str(folder)), home="photo")


def grocery(benchmark: "Benchmark", folder: Path) -> Dataset:
    """81 fine classes of fruit, vegetables and cartons; lines of `<split>.txt` are "path, fine, coarse".

    The shop photographs are the domain "photo", with the published split. Each class's one iconic product
    image is a test item of the domain "iconic": `only("photo")` is the published dataset, `only("iconic")`
    the shift.
    """
    path, names, iconic = folder / "dataset" / "classes.csv", list[str](), list[str]()
    for where, row in islice(csv_rows(path, read_text(path)), 1, None):
        if len(row) != 6 or row[1].strip() != str(len(names)):
            raise InputError(f"{where}: expected six columns and class ID {len(names)}: fetch the file again")
        names.append(from_folder(row[0]))
        iconic.append(inside("dataset/" + row[4].strip().lstrip("/"), where))

    def item(line: str, where: str) -> Item:
        image, fine, _ = ([cell.strip() for cell in line.split(",")] + ["", ""])[:3]
        if not fine.isdecimal() or int(fine) >= len(names):
            raise InputError(f"{where}: {fine!r} is no label of classes.csv: fetch the file again")
        return Item(inside(f"dataset/{image}", where), int(fine), "photo")

    parts = _listed({split: folder / "dataset" / f"{split}.txt" for split in SPLITS}, item)
    parts["test"] += tuple(Item(image, label, "iconic") for label, image in enumerate(iconic))
    notes = ("The test split holds one iconic image per class beside the photographs",)
    return replace(_dataset(benchmark, folder, names, parts), home="photo", notes=notes)


def sample(benchmark: "Benchmark", folder: Path) -> Dataset:
    """The embedded one: emoji of 28 classes drawn in four free styles; the style is the domain.

    `index.json` lists the files of `images/<style>/<class>/` with their split; an emoji is in the same split
    in every style, so that a change of style is tested on things never tuned on.
    """
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        parts: dict[str, list[Item]] = {split: [] for split in SPLITS}
        for row in sorted(index["items"], key=lambda row: row["file"]):
            parts[row["split"]].append(Item(f"images/{row['file']}", row["label"], row["style"]))
        classes = tuple(index["classes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenInstallError(
            f"{folder / 'index.json'} is damaged ({error}): install pbprompt again"
        ) from None
    whole = {split: tuple(items) for split, items in parts.items()}
    return replace(_dataset(benchmark, folder, classes, whole), home="openmoji")


def imagenet_names(folder: Path) -> dict[str, str]:
    """WordNet id → class name, sorted by id, from `classnames.txt` here or in ImageNet's folder beside."""
    places = [folder / "classnames.txt", folder.parent / "imagenet" / "classnames.txt"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(f"{places[0]} is missing: copy ImageNet's classnames.txt (lines 'wnid name') there")
    names = {}
    for where, line in _lines(path):
        wnid, _, name = line.partition(" ")
        if not name:
            raise InputError(f"{where}: {line!r} has no name: write 'wnid name'")
        names[wnid] = from_label(name)
    return dict(sorted(names.items()))


def folder_items(folder: Path, images: str, keys: Sequence[str]) -> tuple[Item, ...]:
    """The files in `folder/images/<class>/`, classes and files sorted by name; labels are places of keys."""
    labels = {key: label for label, key in enumerate(keys)}
    found = subfolders(folder / images)
    if unknown := sorted(set(found) - set(labels)):
        raise InputError(f"{folder / images / unknown[0]}: no such class: move the folder away")
    return tuple(
        Item(f"{images}/{name}/{file}", labels[name])
        for name in found
        for file in sorted(entry.name for entry in (folder / images / name).iterdir())
        if not file.startswith(".")
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path} line {number}", line.strip()


def _listed(lists: dict[str, Path], item: Callable[[str, str], Item]) -> Parts:
    """The items of each split's list file; `item` makes one of a line and its place."""
    return {split: tuple(item(line, where) for where, line in _lines(path)) for split, path in lists.items()}


def _dataset(benchmark: "Benchmark", folder: Path, classes: Iterable[str], parts: Parts) -> Dataset:
    train, val, test = (parts.get(split, ()) for split in SPLITS)
    return Dataset(benchmark.name, folder, tuple(classes), train, val, test, benchmark.template)


READERS: dict[str, Callable[["Benchmark", Path], Dataset]] = {
    read.__name__: read
    for read in (split_file, aircraft, imagenet, wordnet_folders, numbered_folders, pacs, grocery, sample)
}
