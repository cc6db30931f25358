"""ImageNet: 1,000 classes; labels are the sorted WordNet ids, the validation images are the test set."""

from pathlib import Path

from pbprompt.data.catalog.benchmark import (
    IMAGENET,
    SPLIT_FILES,
    Benchmark,
    folder_items,
    imagenet_names,
)
from pbprompt.data.items import Dataset


def read(benchmark: Benchmark, folder: Path) -> Dataset:
    """`images/train/<wnid>` and `images/val/<wnid>`, with the names of `classnames.txt`."""
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


BENCHMARK = Benchmark(
    name="imagenet",
    title="ImageNet",
    aliases=("imagenet1k", "ilsvrc2012"),
    folder="imagenet",
    marker="images/train",
    classes=1_000,
    counts=(1_281_167, 0, 50_000),
    licence=IMAGENET,
    source=f"https://image-net.org, classnames.txt from {SPLIT_FILES}",
    read=read,
)
