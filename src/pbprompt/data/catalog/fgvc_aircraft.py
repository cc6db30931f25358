"""FGVCAircraft: 100 aircraft variants, with the official lists; labels follow `variants.txt`."""

from pathlib import Path

from pbprompt.data.catalog.benchmark import Benchmark, list_lines
from pbprompt.data.items import SPLITS, Dataset, Item
from pbprompt.data.names import from_label
from pbprompt.errors import InputError
from pbprompt.files import inside


def read(benchmark: Benchmark, folder: Path) -> Dataset:
    """Lines of `images_variant_<split>.txt` are "<image> <variant>", where a variant may hold spaces."""
    variants = [line.strip() for line in list_lines(folder / "variants.txt")]
    labels = {variant: label for label, variant in enumerate(variants)}
    parts = {}
    for split in SPLITS:
        path = folder / f"images_variant_{split}.txt"
        items = []
        for number, line in enumerate(list_lines(path), start=1):
            image, _, variant = line.strip().partition(" ")
            if variant not in labels:
                raise InputError(
                    f"{path} line {number}: {variant!r} is not in variants.txt: fetch both again"
                )
            items.append(Item(f"images/{inside(image, f'{path} line {number}')}.jpg", labels[variant]))
        parts[split] = tuple(items)
    return Dataset(
        name=benchmark.name,
        root=folder,
        classes=tuple(map(from_label, variants)),
        template=benchmark.template,
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
    )


BENCHMARK = Benchmark(
    name="fgvc_aircraft",
    title="FGVCAircraft",
    folder="fgvc_aircraft",
    marker="variants.txt",
    classes=100,
    counts=(3_334, 3_333, 3_333),
    licence="non-commercial research",
    source="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/ (its `data` folder, renamed)",
    read=read,
    template="a photo of a {}, a type of aircraft.",
)
