"""ImageNet and its test-only relatives; labels are the sorted WordNet ids."""

from pathlib import Path

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, list_lines
from pbprompt.data.items import Dataset, Item
from pbprompt.data.names import from_label
from pbprompt.data.stream.folders import subfolders
from pbprompt.errors import InputError


def imagenet_names(folder: Path) -> dict[str, str]:
    """WordNet id → class name, sorted by id, from `classnames.txt` here or in ImageNet's folder beside."""
    places = [folder / "classnames.txt", folder.parent / "imagenet" / "classnames.txt"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(f"{places[0]} is missing: copy ImageNet's classnames.txt (lines 'wnid name') there")
    names = {}
    for number, line in enumerate(list_lines(path), start=1):
        wnid, _, name = line.strip().partition(" ")
        if not name:
            raise InputError(f"{path} line {number}: {line.strip()!r} has no name: write 'wnid name'")
        names[wnid] = from_label(name)
    return dict(sorted(names.items()))


def folder_items(folder: Path, images: str, labels: dict[str, int]) -> tuple[Item, ...]:
    """The files in `folder/images/<class>/`, classes and files sorted by name."""
    found = subfolders(folder / images)
    unknown = sorted(set(found) - set(labels))
    if unknown:
        raise InputError(f"{folder / images / unknown[0]}: no such class: move the folder away")
    return tuple(
        Item(f"{images}/{name}/{file}", labels[name])
        for name in sorted(found)
        for file in sorted(entry.name for entry in (folder / images / name).iterdir())
        if not file.startswith(".")
    )


def _read(benchmark: Benchmark, folder: Path) -> Dataset:
    """`images/train/<wnid>`, and `images/val/<wnid>` as the test set, with the names of `classnames.txt`."""
    names = imagenet_names(folder)
    labels = {wnid: label for label, wnid in enumerate(names)}
    return Dataset(
        name=benchmark.name,
        root=folder,
        classes=tuple(names.values()),
        train=folder_items(folder, "images/train", labels),
        test=folder_items(folder, "images/val", labels),
        template=benchmark.template,
    )


def _relative(
    title: str,
    folder: str,
    images: str,
    classes: int,
    count: int,
    source: str,
    licence: str = "MIT (its repository)",
    *,
    aliases: tuple[str, ...] = (),
    numbered: bool = False,
) -> Benchmark:
    """A row of the table.

    Folders are WordNet ids, and the classes those that have one; or, `numbered`, the 1,000 places of
    ImageNet's sorted ids.
    """

    def read(benchmark: Benchmark, where: Path) -> Dataset:
        names = imagenet_names(where)
        if numbered:
            keys, labels = list(names), {str(place): place for place in range(len(names))}
        else:
            keys = [name for name in subfolders(where / images) if name in names]
            labels = {wnid: label for label, wnid in enumerate(keys)}
        return Dataset(
            name=benchmark.name,
            root=where,
            classes=tuple(names[key] for key in keys),
            test=folder_items(where, images, labels),
            template=benchmark.template,
        )

    return Benchmark(
        name=title.lower().replace("-", "_"),
        title=title,
        folder=folder,
        marker=images,
        classes=classes,
        counts=(0, 0, count),
        licence=licence,
        source=f"{source}, with ImageNet's classnames.txt beside it",
        read=read,
        aliases=aliases,
    )


IMAGENET = Benchmark(
    name="imagenet",
    title="ImageNet",
    aliases=("imagenet1k", "ilsvrc2012"),
    folder="imagenet",
    marker="images/train",
    classes=1_000,
    counts=(1_281_167, 0, 50_000),
    licence="non-commercial research, by ImageNet's terms of access",
    source=f"https://image-net.org, classnames.txt from {SPLIT_FILES}",
    read=_read,
)
RELATIVES = (
    _relative(
        "ImageNetV2", "imagenetv2", "imagenetv2-matched-frequency-format-val", 1_000, 10_000,
        "https://github.com/modestyachts/ImageNetV2",
        "MIT (its repository); the images under their Flickr licences", numbered=True,
    ),
    _relative(  # drawings
        "ImageNet-Sketch", "imagenet-sketch", "images", 1_000, 50_889,
        "https://github.com/HaohanWang/ImageNet-Sketch",
    ),
    _relative(  # photographs that mislead classifiers
        "ImageNet-A", "imagenet-adversarial", "imagenet-a", 200, 7_500,
        "https://github.com/hendrycks/natural-adv-examples", aliases=("imagenet-adversarial",),
    ),
    _relative(  # art, toys, embroidery
        "ImageNet-R", "imagenet-rendition", "imagenet-r", 200, 30_000,
        "https://github.com/hendrycks/imagenet-r", aliases=("imagenet-rendition",),
    ),
)  # fmt: skip
