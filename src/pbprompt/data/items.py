"""The two types that leave this package: an image with its label, and a dataset of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pbprompt.errors import InputError

SPLITS = ("train", "val", "test")
DEFAULT_TEMPLATE = "a photo of a {}."


@dataclass(frozen=True, slots=True)
class Item:
    """One image: its path relative to the dataset's root (with `/`), its label, its domain where known."""

    path: str
    label: int
    domain: str = ""


@dataclass(frozen=True)
class Dataset:
    """Images in three splits with the names of their classes; `label` is an index into `classes`.

    `home` names the domain that is tuned on where a dataset holds several; `notes` say how the dataset was
    read, `skipped` which files were left out and why.
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

    def __post_init__(self) -> None:
        for item in self.items:
            if not 0 <= item.label < len(self.classes):
                limit = len(self.classes) - 1
                raise InputError(f"{self.name}: {item.path} has label {item.label}: use 0 to {limit}")

    @property
    def items(self) -> tuple[Item, ...]:
        """All items: train, then val, then test."""
        return self.train + self.val + self.test

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of the items, sorted; empty where there are none."""
        return tuple(sorted({item.domain for item in self.items} - {""}))

    def split(self, name: str) -> tuple[Item, ...]:
        """The items of "train", "val" or "test"."""
        if name not in SPLITS:
            raise InputError(f"no split is named {name!r}: use train, val or test")
        items: tuple[Item, ...] = getattr(self, name)
        return items

    def file(self, item: Item) -> Path:
        """Where the item's image is on disk."""
        return self.root / item.path

    def only(self, domain: str) -> "Dataset":
        """The same dataset with the items of one domain."""
        if domain not in self.domains:
            known = ", ".join(self.domains) or "none"
            raise InputError(f"{self.name} has no domain {domain!r}: it has {known}")
        train, val, test = (
            tuple(item for item in self.split(split) if item.domain == domain) for split in SPLITS
        )
        return replace(self, name=f"{self.name}:{domain}", home=domain, train=train, val=val, test=test)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over class names and every split's paths, labels and domains; independent of the root."""
        digest = hashlib.sha256(_line(list(self.classes)))
        for name in SPLITS:
            digest.update(_line(name))
            for item in self.split(name):
                digest.update(_line([item.path, item.label, item.domain]))
        return digest.hexdigest()

    def describe(self) -> str:
        """One paragraph: classes, splits, domains, how it was read, what was left out."""
        counts = ", ".join(f"{len(self.split(name)):,} {name}" for name in SPLITS)
        text = [f"{self.name}: {len(self.classes):,} classes ({some(self.classes)}); {counts}."]
        if self.domains:
            sizes = Counter(item.domain for item in self.items)
            text.append("Domains: " + ", ".join(f"{name} {sizes[name]:,}" for name in self.domains) + ".")
        text += [f"{note}." for note in self.notes]
        if self.skipped:
            text.append(self.describe_skipped())
        return " ".join(text)

    def describe_skipped(self) -> str:
        """What was left out and why, in a sentence."""
        reasons = Counter(reason for _, reason in self.skipped)
        what = "; ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        files = "1 file" if len(self.skipped) == 1 else f"{len(self.skipped):,} files"
        return f"Skipped {files}: {what} ({some([p for p, _ in self.skipped])})."


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode() + b"\n"


def some(names: Iterable[str], limit: int = 4) -> str:
    """The first few names, for messages."""
    names = list(names)
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")
