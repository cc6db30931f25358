"""`look`: what is in a folder of images, before anything is fitted to it."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from pbprompt.apps.audit.duplicates import Duplicates, SmallSquare, find_duplicates
from pbprompt.apps.audit.leave_one_out import (
    Judgement,
    LabelError,
    Outlier,
    Overlap,
    judge,
    label_errors,
    multi_label_errors,
    outliers,
    overlaps,
)
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.model.learn import targets
from pbprompt.model.predictor import zero_shot
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.features.store import file_hashes
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.decoding import squares_of
from pbprompt.vision.images.images import open_image, opened
from pbprompt.vision.images.items import SPLITS, Dataset, Item
from pbprompt.vision.images.locations import SPLIT_WORDS, subfolders
from pbprompt.vision.images.names import from_folder, name_key, read_name
from pbprompt.vision.images.sources import is_saved_dataset, open_dataset
from pbprompt.vision.images.stream import list_images
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.load import load_backbone

TINY, ODD = 64, 4  # pixels of the short side; how often it fits into the long one
DARK = 40.0  # mean grey level
BLURRED = 0.12  # what is lost at half the resolution of a small square, in its deviations


@dataclass(frozen=True)
class AuditedImage:
    """One readable image; its labels are places in the classes: one, unless the data is multi-label."""

    path: str
    labels: tuple[int, ...]
    split: str
    width: int
    height: int
    format: str

    @property
    def label(self) -> int:
        """Of single-label data."""
        (label,) = self.labels
        return label


class Poor(NamedTuple):
    """A picture that shows little, and why."""

    row: int
    why: str


@dataclass(frozen=True)
class Audit:
    """What was found. Findings name images by their row in `images`, and the clearest come first."""

    name: str
    root: Path
    classes: tuple[str, ...]
    labelled: bool
    images: tuple[AuditedImage, ...]
    unreadable: tuple[tuple[str, str], ...]
    """path, and why"""
    duplicates: tuple[Duplicates, ...]
    overlaps: tuple[Overlap, ...]
    label_errors: tuple[LabelError, ...]
    outliers: tuple[Outlier, ...]
    poor: tuple[Poor, ...]
    places: tuple[tuple[float, float], ...]
    """of each image on a map, 0 to 1: the two directions in which the features differ most"""
    notes: tuple[str, ...]
    multi_label: bool = False

    @property
    def counts(self) -> list[int]:
        """Readable images of each class."""
        counted = Counter(label for image in self.images for label in image.labels)
        return [counted[label] for label in range(len(self.classes))]

    @property
    def imbalance(self) -> float | None:
        """Images of the largest class for one of the smallest that has any."""
        present = [count for count in self.counts if count]
        return max(present) / min(present) if self.labelled and present else None

    def across_splits(self, group: Duplicates) -> bool:
        """Whether a picture is in two splits: what is tested on was trained on."""
        return len({self.images[row].split for row in group.rows}) > 1

    def across_classes(self, group: Duplicates) -> bool:
        """Whether a picture is labelled in two ways, one of which is wrong."""
        return len({self.images[row].labels for row in group.rows}) > 1

    def sizes(self) -> dict[str, Any]:
        """Pixels: the smallest, the median and the largest image, and how many there are of each format."""
        ordered = sorted(self.images, key=lambda image: image.width * image.height)
        sides = [[image.width, image.height] for image in ordered]
        return {
            "smallest": sides[0],
            "median": [round(median(side)) for side in zip(*sides, strict=True)],
            "largest": sides[-1],
            "formats": dict(Counter(image.format for image in ordered).most_common()),
        }

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it: paths and class names in place of rows and labels."""
        return {
            "data": self.name,
            "images": len(self.images),
            "splits": dict(Counter(image.split for image in self.images)),
            "classes": dict(zip(self.classes, self.counts, strict=True)) if self.labelled else None,
            "imbalance": self.imbalance,
            "sizes": self.sizes(),
            "unreadable": [{"image": as_text(path), "why": as_text(why)} for path, why in self.unreadable],
            "duplicates": [
                {
                    "images": [self._where(row) for row in group.rows],
                    "exact": group.exact,
                    "across_splits": self.across_splits(group),
                    "across_classes": self.across_classes(group),
                }
                for group in self.duplicates
            ],
            "overlaps": [
                {
                    "classes": [self.classes[pair.first], self.classes[pair.second]],
                    "confused": pair.confused,
                    "images": pair.images,
                }
                for pair in self.overlaps
            ],
            "label_errors": [
                self._finding(one) | {"suggested": self.suggested(one)} for one in self.label_errors
            ],
            "outliers": list(map(self._finding, self.outliers)),
            "poor": list(map(self._finding, self.poor)),
            "notes": list(self.notes),
        }

    def _finding(self, one: LabelError | Outlier | Poor) -> dict[str, Any]:
        """With the image in place of its row."""
        fields = one._asdict()
        return self._where(fields.pop("row")) | fields

    def _where(self, row: int) -> dict[str, Any]:
        image = self.images[row]
        names = [self.classes[label] for label in image.labels] if self.labelled else [None]
        label = {"labels": names} if self.multi_label else {"label": names[0]}
        return {"image": as_text(image.path), **label, "split": image.split}

    def labelled_as(self, row: int) -> str:
        """An image's label or labels."""
        return ", ".join(self.classes[label] for label in self.images[row].labels) or "none"

    def suggested(self, error: LabelError) -> str:
        """What an image looks like: another class, or with a label more or less."""
        name = self.classes[error.suggested]
        if not self.multi_label:
            return name
        return f"without {name}" if error.suggested in self.images[error.row].labels else f"with {name}"


def look(
    source: str | Path | Dataset,
    root: str | Path | None = None,
    *,
    backbone: str | Backbone | Sequence[str | Backbone] = "lite",
    device: str = "cpu",
    classes_file: str | Path | None = None,
    progress: bool = False,
) -> Audit:
    """Look at a folder, table, split file or benchmark, or at a folder of images without labels.

    Nothing is trained and nothing is changed. Features come from the cache where they are there.

    Args:
        source: what `open_dataset` takes, or a dataset of it.
        root: where benchmarks are, or what a table's paths are relative to.
        backbone: by which images look alike, or its name; of several, or a list, the first.
        device: of a backbone that is given by name.
        classes_file: names to read, by label, for classes of your own data.
        progress: show a bar.

    Example:
        >>> sample = open_dataset("sample")
        >>> found = look(replace(sample, train=sample.train[::32], val=(), test=()))
        >>> len(found.images), found.unreadable
        (28, ())
    """
    dataset, labelled = open_images(source, root, classes_file, alike=True)  # which is told
    first = [backbone] if isinstance(backbone, str | Backbone) else list(backbone)[:1]
    towers = load_backbone(first, device=device).towers[0]
    bank = FeatureCache(towers, progress=progress)
    failures: dict[str, InputError] = {}
    features = bank.encode(dataset.root, dataset.items, failures)
    items = [item for item in dataset.items if item.path not in failures]
    if not items:
        raise InputError(f"{dataset.name}: none of its {len(dataset.items):,} images can be read")
    hashes = file_hashes(bank.cache, dataset.root, [item.path for item in items])
    squares = _squares([dataset.file(item) for item in items], progress)

    def same_pixels(first: int, second: int) -> bool:
        one, other = (open_image(dataset.file(items[row])) for row in (first, second))
        return one.size == other.size and one.tobytes() == other.tobytes()

    global_, labels = features.global_.cpu(), features.labels.cpu()
    duplicates = find_duplicates([str(hashes[item.path]) for item in items], global_, squares, same_pixels)
    said: Judgement | None = None
    wrong: list[LabelError] = []
    if labelled and (dataset.multi_label or len(dataset.classes) > 1):
        texts = torch.zeros(len(dataset.classes), towers.embed_dim)
        if towers.reads_text:
            texts = zero_shot(towers, dataset.classes, dataset.template).bank[0].cpu()
        if dataset.multi_label:
            wrong = multi_label_errors(global_, targets(items, len(dataset.classes)), texts)
        else:
            copies = [group.rows for group in duplicates]
            said = judge(global_, labels, texts, float(towers.logit_scale), copies)
    why = {path: str(error).rpartition(": ")[2] for path, error in failures.items()}  # after the path
    split = {item.path: name for name in SPLITS for item in dataset.split(name)}
    images = tuple(_picture(dataset, item, split[item.path]) for item in items)
    return Audit(
        name=dataset.name,
        root=dataset.root,
        classes=dataset.classes,
        labelled=labelled,
        images=images,
        unreadable=(*dataset.skipped, *why.items()),
        duplicates=tuple(duplicates),
        overlaps=tuple(overlaps(said) if said else ()),
        label_errors=tuple(label_errors(said) if said else wrong),
        outliers=tuple(outliers(said.odds) if said else ()),
        poor=tuple(_poor(images, squares)),
        places=_places(global_),
        notes=(*dataset.notes, *_named_alike(dataset.classes), *_notes(dataset, labelled, labels)),
        multi_label=dataset.multi_label,
    )


def _poor(images: Sequence[AuditedImage], squares: UInt8[Tensor, "n 3 side side"]) -> list[Poor]:
    """Tiny, of odd shape, dark or blurred ones."""
    x = squares.float()
    rough = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear")
    sharp = (x - rough).square().mean((1, 2, 3)).sqrt() / x.flatten(1).std(1).clamp(min=1)
    found = []
    for row, (image, detail, light) in enumerate(
        zip(images, sharp.tolist(), x.mean((1, 2, 3)).tolist(), strict=True)
    ):
        short, long = sorted((image.width, image.height))
        words = {"tiny": short < TINY, "odd aspect": long > ODD * short}
        words |= {"dark": light < DARK, "blurred": detail < BLURRED}
        found += [Poor(row, why) for why, holds in words.items() if holds]
    return sorted(found, key=lambda one: one.why)


def _places(features: Float[Tensor, "n d"]) -> tuple[tuple[float, float], ...]:
    x = unit(features.float())
    x = x - x.mean(0)
    along = x @ torch.linalg.eigh(x.T @ x).eigenvectors[:, -2:].flip(1)
    along = (along - along.amin(0)) / (along.amax(0) - along.amin(0)).clamp(min=1e-9)
    return tuple((round(a, 3), round(b, 3)) for a, b in along.tolist())


def open_images(
    source: str | Path | Dataset,
    root: str | Path | None = None,
    classes_file: str | Path | None = None,
    fewest: int = 2,
    alike: bool = False,
) -> tuple[Dataset, bool]:
    """The images as a dataset, and whether they are labelled: what `fit` takes, and folders without labels.

    A folder with one class folder, or none, is taken as it is: its images are its training items.
    """
    if isinstance(source, Dataset):
        return source, True
    path = Path(source).expanduser()
    if path.is_dir() and not is_saved_dataset(path):
        folders = subfolders(path)
        if not folders or (len(folders) == 1 and folders[0].lower() not in SPLIT_WORDS):
            items = [Item(file.relative_to(path).as_posix(), 0) for file in list_images(path)]
            choices = Choices.of(classes_file if folders else None)
            names = choices.names(folders or ["unlabelled"], str(path), from_folder)
            return Dataset(path.resolve().name, path, names, tuple(items)), bool(folders)
    return open_dataset(source, root, classes_file=classes_file, fewest=fewest, alike=alike), True


def _named_alike(classes: Sequence[str]) -> list[str]:
    """Classes that `fit` refuses, since prompts could not tell them apart: likely one class."""
    alike: dict[str, list[str]] = {}
    for label in classes:
        alike.setdefault(name_key(read_name(label)), []).append(label)
    several = [" and ".join(map(repr, map(str, labels))) for labels in alike.values() if len(labels) > 1]
    return [
        f"{labels} have one name, which `fit` refuses: make them one, or give --names" for labels in several
    ]


def _notes(dataset: Dataset, labelled: bool, labels: Int[Tensor, " n"]) -> list[str]:
    if dataset.multi_label:
        return ["Multi-label: there are no overlaps and no least familiar images to find"]
    if not labelled:
        return ["No class folders: without labels there are no overlaps, label errors or outliers to find"]
    if len(labels.unique()) < 2:
        return ["A single class: overlaps, label errors and outliers need a second one to compare with"]
    single = int((labels.bincount() == 1).sum())
    if single == 1:
        return ["One class has a single image, whose label cannot be judged"]
    return [f"{single} classes have a single image each, whose label cannot be judged"] if single else []


def _squares(files: Sequence[Path], progress: bool) -> UInt8[Tensor, "n 3 side side"]:
    found = []
    with Progress("comparing images", shown=progress) as bar:
        bar.expect(len(files))
        for square in squares_of(files, SmallSquare()):
            if isinstance(square, InputError):  # it was read a moment ago
                raise square
            found.append(torch.from_numpy(square))
            bar.advance(1)
    return torch.stack(found).permute(0, 3, 1, 2).contiguous()


def _picture(dataset: Dataset, item: Item, split: str) -> AuditedImage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # only its header is read
        with dataset.file(item).open("rb") as file, opened(file) as image:
            labels = item.labels if dataset.multi_label else (item.label,)
            return AuditedImage(item.path, labels, split, *image.size, str(image.format))
