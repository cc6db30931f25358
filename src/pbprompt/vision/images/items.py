"""The types that leave this package: an image with its label or labels, and a dataset of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.vision.images.names import read_name

if TYPE_CHECKING:
    from pbprompt.vision.images.fewshot import Draw

SPLITS = ("train", "val", "test")
DEFAULT_TEMPLATE = "a photo of a {}."


@dataclass(frozen=True, slots=True)
class Item:
    """One image: its path relative to the dataset's root (with `/`), its label, its domain where known, and
    the series it is of (`series.py`), if any.

    Of a multi-label dataset `labels` are its labels, perhaps none, and `label` is 0.
    """

    path: str
    label: int
    domain: str = ""
    labels: tuple[int, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Dataset:
    """Images in three splits with the labels of their classes; `label` is an index into `classes`.

    `home` names the domain that is tuned on where a dataset holds several; `notes` say how the dataset was
    read, `skipped` which files were left out and why; `descriptions` are classes with sentences about them,
    `hierarchy` says what a class, or a group of them, belongs to.
    `held_out`: shares of each class that a seed drew for val and test, where it had no split of its own.
    `drawn`: where its train and val are a few-shot draw, of `drawn_from` if that is kept.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    train: tuple[Item, ...] = ()
    val: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    template: str = DEFAULT_TEMPLATE
    home: str = ""
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    multi_label: bool = False
    descriptions: tuple[tuple[str, ...], ...] = ()
    hierarchy: tuple[tuple[str, str], ...] = ()
    held_out: tuple[float, float] = (0.0, 0.0)
    drawn: "Draw | None" = None
    drawn_from: "Dataset | None" = None

    def __post_init__(self) -> None:
        for item in self.items:
            for label in (item.label, *item.labels):
                if not 0 <= label < len(self.classes):
                    use = f"use 0 to {len(self.classes) - 1}"
                    raise InputError(f"{self.name}: {item.path} has label {label}: {use}")

    @property
    def whole(self) -> "Dataset":
        """What it was drawn from; itself where it is no draw."""
        return self.drawn_from or self

    @property
    def items(self) -> tuple[Item, ...]:
        return self.train + self.val + self.test

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of the items, sorted; empty where there are none."""
        return tuple(sorted({item.domain for item in self.items} - {""}))

    @property
    def split_by_seed(self) -> bool:
        return any(self.held_out)

    def single_label(self) -> "Dataset":
        """Itself, refused where it is multi-label."""
        if self.multi_label:
            raise InputError(
                f"{self.name}: its column 'labels' makes it multi-label, which this cannot use: name it "
                "'label' and give one per image"
            )
        return self

    def split(self, name: str) -> tuple[Item, ...]:
        """The items of "train", "val" or "test"."""
        if name not in SPLITS:
            raise InputError(f"no split is named {name!r}: use train, val or test")
        items: tuple[Item, ...] = getattr(self, name)
        return items

    def file(self, item: Item) -> Path:
        return self.root / item.path

    def only(self, domain: str) -> "Dataset":
        """The same dataset with the items of one domain."""
        if domain not in self.domains:
            known = ", ".join(self.domains) or "none"
            raise InputError(f"{self.name} has no domain {domain!r}: it has {known}")
        name = f"{self.name}:{domain}"
        return self.with_labels(
            lambda item: item.label if item.domain == domain else None, name=name, home=domain
        )

    def with_labels(self, label_of: Callable[[Item], int | None], **others: Any) -> "Dataset":
        """The same dataset with other labels, and others of its fields; without the items of which the label
        is None."""
        parts: dict[str, Any] = {}
        for name in SPLITS:
            found = ((item, label_of(item)) for item in self.split(name))
            parts[name] = tuple(
                item if item.label == label else replace(item, label=label)
                for item, label in found
                if label is not None
            )
        return replace(self, **parts, **others)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over class names and every split's paths, labels and domains; independent of the root."""
        return self._hash(list(map(read_name, self.classes)))

    @cached_property
    def labelled_hash(self) -> str:
        """The same over labels, so that it does not depend on what the classes are called for prompts."""
        return self._hash(list(map(str, self.classes)))

    def _hash(self, classes: list[str]) -> str:
        lines: list[object] = [classes]
        for name in SPLITS:
            lines.append(name)
            for item in self.split(name):
                lines.append([item.path, list(item.labels) if self.multi_label else item.label, item.domain])
        return hashlib.sha256("".join(json.dumps(line) + "\n" for line in lines).encode()).hexdigest()

    def describe(self) -> str:
        """One paragraph: classes, splits, domains, how it was read, what was left out."""
        counts = ", ".join(f"{len(self.split(name)):,} {name}" for name in SPLITS)
        if len(self.train) == len(self.items):
            counts = f"{len(self.train):,} images"
        kinds = f"{len(self.classes):,} {'labels' if self.multi_label else 'classes'} ({some(self.classes)})"
        if self.multi_label:
            mean = sum(len(item.labels) for item in self.items) / len(self.items)
            bare = sum(not item.labels for item in self.items)
            kinds += f", {mean:.2f} per image, {bare:,} images without any"
        sizes = Counter(item.domain for item in self.items)
        domains = ", ".join(f"{name} {sizes[name]:,}" for name in self.domains)
        text = [f"{self.name}: {kinds}; {counts}.", *([f"Domains: {domains}."] if domains else [])]
        text += [f"{note}." for note in self.notes]
        return " ".join([*text, self.describe_skipped()] if self.skipped else text)

    def describe_skipped(self) -> str:
        """What was left out and why, in a sentence."""
        reasons = Counter(reason for _, reason in self.skipped)
        what = "; ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        files = "1 file" if len(self.skipped) == 1 else f"{len(self.skipped):,} files"
        return f"Skipped {files}: {what} ({some(as_text(path) for path, _ in self.skipped)})."


def some(names: Iterable[str], limit: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")
