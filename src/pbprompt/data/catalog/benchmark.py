"""What a catalogue entry is, and the layouts that several of them share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pbprompt.data.folders import subfolders
from pbprompt.data.items import DEFAULT_TEMPLATE, Dataset, Item
from pbprompt.data.names import from_label
from pbprompt.data.split_json import split_dataset
from pbprompt.errors import InputError
from pbprompt.files import read_text

# Where the split files and ImageNet's class names are published, to be put beside the images.
SPLIT_FILES = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
IMAGENET = "non-commercial research, by ImageNet's terms of access"
UNSTATED = "none stated by its authors; given out for research"

Counts = tuple[int | None, int | None, int | None]  # train, val, test; None where any number will do


@dataclass(frozen=True)
class Benchmark:
    """A published dataset: where it lies, how it is read, what it must hold, where a person obtains it.

    `marker` is a path in its folder that tells it is there; `read` makes the dataset from that folder.
    """

    name: str
    title: str
    folder: str
    marker: str
    classes: int | None
    counts: Counts
    licence: str
    source: str
    read: Callable[["Benchmark", Path], Dataset]
    template: str = DEFAULT_TEMPLATE
    aliases: tuple[str, ...] = ()
    domains: tuple[tuple[str, int], ...] = ()  # each domain and its images

    def locate(self, root: str | Path) -> Path:
        """The dataset's own folder: `root/<folder>`, or `root` itself."""
        root = Path(root).expanduser()
        for folder in (root / self.folder, root):
            if (folder / self.marker).exists():
                return folder
        raise InputError(
            f"{self.title} is not under {root}: expected {root / self.folder / self.marker} "
            f"(obtain it from {self.source})"
        )

    def open(self, root: str | Path) -> Dataset:
        """Read the benchmark under `root`, the folder that holds it or the benchmark's own."""
        return self.read(self, self.locate(root))


def from_split(
    file: str, images: str = "", rename: Callable[[str], str] = from_label
) -> Callable[[Benchmark, Path], Dataset]:
    """A reader for a published split file whose paths are relative to the folder `images`.

    Published files carry names already made readable; `rename` leaves those alone and mends raw ones.
    """

    def read(benchmark: Benchmark, folder: Path) -> Dataset:
        return split_dataset(
            folder / file,
            name=benchmark.name,
            root=folder,
            prefix=images,
            rename=lambda name: from_label(rename(name)),
            template=benchmark.template,
        )

    return read


def list_lines(path: Path) -> list[str]:
    """The lines of a list file, without the empty ones."""
    return [line for line in read_text(path).split("\n") if line.strip()]


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


def imagenet_shift(images: str, *, numbered: bool = False) -> Callable[[Benchmark, Path], Dataset]:
    """A reader for ImageNet's test-only relatives.

    Folders are WordNet ids, and the classes those that have one; or, `numbered`, the 1,000 places of
    ImageNet's sorted ids.
    """

    def read(benchmark: Benchmark, folder: Path) -> Dataset:
        names = imagenet_names(folder)
        if numbered:
            keys, labels = list(names), {str(place): place for place in range(len(names))}
        else:
            keys = [name for name in subfolders(folder / images) if name in names]
            labels = {wnid: label for label, wnid in enumerate(keys)}
        return Dataset(
            name=benchmark.name,
            root=folder,
            classes=tuple(names[key] for key in keys),
            test=folder_items(folder, images, labels),
            template=benchmark.template,
        )

    return read
