"""Grocery Store: 81 fine classes of fruit, vegetables and cartons, photographed in shops.

The shop photographs are the domain "photo", with the published split. Each class's one iconic product image
is a test item of the domain "iconic": `only("photo")` is the published dataset, `only("iconic")` the shift.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from pbprompt.data.catalog.benchmark import Benchmark, list_lines
from pbprompt.data.items import SPLITS, Dataset, Item
from pbprompt.data.names import from_folder
from pbprompt.errors import InputError
from pbprompt.files import inside, read_text


@dataclass(frozen=True)
class Product:
    """A line of `classes.csv`: a fine class, its coarse one, its iconic image and its description's file."""

    name: str
    coarse: str
    iconic: str
    description: str


def products(folder: Path) -> list[Product]:
    """The classes by label, with paths relative to the benchmark's folder."""
    path = folder / "dataset" / "classes.csv"
    found: list[Product] = []
    for place, row in enumerate(csv.reader(io.StringIO(read_text(path), newline=""))):
        where = f"{path} line {place + 1}"
        if place == 0 or not row:
            continue
        if len(row) != 6 or row[1].strip() != str(len(found)):
            raise InputError(f"{where}: expected six columns and class ID {len(found)}: fetch the file again")
        iconic, description = (inside("dataset/" + cell.strip().lstrip("/"), where) for cell in row[4:])
        found.append(Product(from_folder(row[0]), from_folder(row[2]), iconic, description))
    return found


def read(benchmark: Benchmark, folder: Path) -> Dataset:
    """Lines of `<split>.txt` are "path, fine label, coarse label"."""
    classes = products(folder)
    parts: dict[str, tuple[Item, ...]] = {}
    for split in SPLITS:
        path = folder / "dataset" / f"{split}.txt"
        items = []
        for number, line in enumerate(list_lines(path), start=1):
            where = f"{path} line {number}"
            image, fine, _ = ([cell.strip() for cell in line.split(",")] + ["", ""])[:3]
            if not fine.isdecimal() or int(fine) >= len(classes):
                raise InputError(f"{where}: {fine!r} is no label of classes.csv: fetch the file again")
            items.append(Item(inside(f"dataset/{image}", where), int(fine), "photo"))
        parts[split] = tuple(items)
    parts["test"] += tuple(Item(product.iconic, label, "iconic") for label, product in enumerate(classes))
    return Dataset(
        name=benchmark.name,
        root=folder,
        classes=tuple(product.name for product in classes),
        template=benchmark.template,
        home="photo",
        notes=("The test split holds one iconic image per class beside the photographs",),
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
    )


BENCHMARK = Benchmark(
    name="grocery",
    title="Grocery Store",
    folder="grocery",
    marker="dataset/classes.csv",
    classes=81,
    counts=(2_640, 296, 2_485 + 81),
    licence="MIT",
    source="https://github.com/marcusklasson/GroceryStoreDataset",
    read=read,
    domains=(("iconic", 81), ("photo", 5_421)),
)
