"""The ten datasets that few-shot tables have beside ImageNet; nine come with a published split file."""

import re
from collections.abc import Callable
from pathlib import Path

from pbprompt.data.catalog.benchmark import SPLIT_FILES, UNSTATED, Benchmark, Counts, list_lines
from pbprompt.data.items import DEFAULT_TEMPLATE, SPLITS, Dataset, Item
from pbprompt.data.names import from_label
from pbprompt.data.tables import split_dataset
from pbprompt.errors import InputError
from pbprompt.files import inside

CALTECH_NAMES = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}
EUROSAT_NAMES = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}


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


def _with_split(
    title: str,
    folder: str,
    images: str,
    classes: int,
    counts: Counts,
    source: str,
    licence: str = UNSTATED,
    template: str = DEFAULT_TEMPLATE,
    *,
    name: str = "",
    split: str = "",
    aliases: tuple[str, ...] = (),
    rename: Callable[[str], str] = from_label,
) -> Benchmark:
    """A row of the table: the split file is named by the title and its paths are relative to `images`.

    Published files carry names already made readable; `rename` leaves those alone and corrects raw ones.
    """
    file = f"split_zhou_{split or title}.json"

    def read(benchmark: Benchmark, where: Path) -> Dataset:
        return split_dataset(
            where / file,
            name=benchmark.name,
            root=where,
            prefix=images,
            rename=lambda raw: from_label(rename(raw)),
            template=template,
        )

    return Benchmark(
        name=name or title.lower(),
        title=title,
        folder=folder,
        marker=file,
        classes=classes,
        counts=counts,
        licence=licence,
        source=f"{source} the split file from {SPLIT_FILES}",
        read=read,
        template=template,
        aliases=aliases,
    )


def _read_aircraft(benchmark: Benchmark, folder: Path) -> Dataset:
    """The official lists: lines of `images_variant_<split>.txt` are "<image> <variant>", which may hold
    spaces; labels follow `variants.txt`."""
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


BENCHMARKS = (
    _with_split(
        "Caltech101", "caltech-101", "101_ObjectCategories", 100, (4_128, 1_649, 2_465),
        "https://data.caltech.edu/records/mzrjq-6wc02,", "CC BY 4.0",
        rename=lambda name: CALTECH_NAMES.get(name, name),  # without BACKGROUND_Google and Faces_easy
    ),
    _with_split(
        "OxfordPets", "oxford_pets", "images", 37, (2_944, 736, 3_669),
        "https://www.robots.ox.ac.uk/~vgg/data/pets/,", "CC BY-SA 4.0", "a photo of a {}, a type of pet.",
        name="oxford_pets",
    ),
    _with_split(
        "StanfordCars", "stanford_cars", "", 196, (6_509, 1_635, 8_041),
        "https://ai.stanford.edu/~jkrause/cars/car_dataset.html,", "non-commercial research",
        name="stanford_cars", rename=year_first,
    ),
    _with_split(
        "Flowers102", "oxford_flowers", "jpg", 102, (4_093, 1_633, 2_463),
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/,",
        template="a photo of a {}, a type of flower.", split="OxfordFlowers", aliases=("oxford_flowers",),
    ),
    _with_split(
        "Food101", "food-101", "images", 101, (50_500, 20_200, 30_300),
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/,",
        template="a photo of {}, a type of food.",
    ),
    Benchmark(
        name="fgvc_aircraft",
        title="FGVCAircraft",
        folder="fgvc_aircraft",
        marker="variants.txt",
        classes=100,
        counts=(3_334, 3_333, 3_333),
        licence="non-commercial research",
        source="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/ (its `data` folder, renamed)",
        read=_read_aircraft,
        template="a photo of a {}, a type of aircraft.",
    ),
    _with_split(
        "SUN397", "sun397", "SUN397", 397, (15_880, 3_970, 19_850),
        "https://vision.princeton.edu/projects/2010/SUN/,",
        "research; the images' rights stay with their owners", rename=reversed_path,
    ),
    _with_split(
        "DTD", "dtd", "images", 47, (2_820, 1_128, 1_692),
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/,", "research", "{} texture.",
        split="DescribableTextures", aliases=("describable_textures",),
    ),
    _with_split(
        "EuroSAT", "eurosat", "2750", 10, (13_500, 5_400, 8_100),
        "https://github.com/phelber/EuroSAT (the RGB images),", "MIT", "a centered satellite photo of {}.",
        rename=lambda name: EUROSAT_NAMES.get(name, name),
    ),
    _with_split(
        "UCF101", "ucf101", "UCF-101-midframes", 101, (7_639, 1_898, 3_783),
        "https://www.crcv.ucf.edu/data/UCF101.php, the frames and",
        template="a photo of a person doing {}.", rename=split_capitals,
    ),
)  # fmt: skip
