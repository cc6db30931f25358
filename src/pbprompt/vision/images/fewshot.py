"""Few-shot draws as the field makes them, base and new halves, and files that keep a draw.

One generator, seeded once. Training items are grouped by label in order of first appearance, and k are
sampled from each group; then the same for val with min(k, 4), the generator running on.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.files import as_name, as_text, read_text, write_text
from pbprompt.vision.images.items import Dataset, Item, some
from pbprompt.vision.images.series import in_series

_FORMAT = "pbprompt-draw"
_VAL_SHOTS = 4


@dataclass(frozen=True)
class Draw:
    dataset: str
    content_hash: str
    shots: int
    seed: int
    classes: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]

    @property
    def short(self) -> tuple[tuple[str, int], ...]:
        """The classes with fewer than `shots` training items, and how many these are."""
        counts = Counter(item.label for item in self.train)
        sizes = ((name, counts[label]) for label, name in enumerate(self.classes))
        return tuple((name, count) for name, count in sizes if count < self.shots)

    @property
    def hash(self) -> str:
        """SHA-256 of the item lines of the draw's file: equal for equal items in equal order."""
        return hashlib.sha256("".join(self.lines()).encode()).hexdigest()

    def lines(self) -> list[str]:
        rows = [
            {
                "split": split,
                "image": as_text(item.path),
                "label": item.label,
                "class": self.classes[item.label],
                "domain": as_text(item.domain),
            }
            for split, items in (("train", self.train), ("val", self.val))
            for item in items
        ]
        return [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]

    def apply(self, dataset: Dataset) -> Dataset:
        """The dataset with the drawn items as train and val; its test items stay."""
        return replace(dataset, train=self.train, val=self.val, drawn=self, drawn_from=dataset)

    def describe(self) -> str:
        """One line: sizes, and the classes that have fewer items than shots."""
        sizes = f"{len(self.train):,} train, {len(self.val):,} val"
        text = f"{self.dataset}, {shots_in_words(self.shots)}, seed {self.seed}: {sizes}"
        if self.short:
            names = some([f"{name} {count}" for name, count in self.short])
            classes = "1 class has" if len(self.short) == 1 else f"{len(self.short)} classes have"
            text += f"; {classes} fewer training items than shots ({names})"
        return text


def shots_in_words(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def draw(dataset: Dataset, shots: int, seed: int) -> Draw:
    """Draw `shots` training items and min(shots, 4) val items of every class; all where there are fewer."""
    if shots < 1:
        raise InputError(f"shots is {shots}: give 1 or more")
    if dataset.multi_label:
        raise InputError(f"{dataset.name} is multi-label: all its training images are used, so draw none")
    if not dataset.train:
        raise InputError(f"{dataset.name} has no training items to draw from: it is for testing only")
    source = random.Random(seed)
    train = _sample(dataset.train, shots, source)
    val = _sample(dataset.val, min(shots, _VAL_SHOTS), source)
    return Draw(dataset.name, dataset.content_hash, shots, seed, dataset.classes, train, val)


def _sample(items: Sequence[Item], shots: int, source: random.Random) -> tuple[Item, ...]:
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    drawn: list[Item] = []
    for own in groups.values():
        if any(item.group for item in own):  # whole series, but for the last
            series = in_series(own, [item.group for item in own], source)
            drawn += [item for one in series for item in one][:shots]
        else:
            drawn += source.sample(own, shots) if len(own) >= shots else own
    return tuple(drawn)


def base_new(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """The first ⌈n/2⌉ classes and the rest, each a dataset with labels from 0.

    Shots are drawn before: `base_new(draw.apply(dataset))`.
    """
    count = len(dataset.classes)
    middle = (count + 1) // 2

    def half(name: str, start: int, stop: int) -> Dataset:
        def label_of(item: Item) -> int | None:
            return item.label - start if start <= item.label < stop else None

        classes = dataset.classes[start:stop]
        return dataset.with_labels(label_of, name=f"{dataset.name}/{name}", classes=classes)

    return half("base", 0, middle), half("new", middle, count)


def write_draw(path: str | Path, drawn: Draw) -> None:
    """Write the draw as JSONL: a header, then a line an item."""
    header = {
        "format": _FORMAT,
        "version": 1,
        "dataset": drawn.dataset,
        "content_hash": drawn.content_hash,
        "shots": drawn.shots,
        "seed": drawn.seed,
        "hash": drawn.hash,
    }
    write_text(path, json.dumps(header, ensure_ascii=False) + "\n" + "".join(drawn.lines()))


def read_draw(path: str | Path, dataset: Dataset) -> Draw:
    """Read a draw back; refused where it was altered, or drawn from other data than `dataset`."""
    path = Path(path)
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    header = _object(path, 1, lines[0] if lines else "")
    if header.get("format") != _FORMAT or header.get("version") != 1:
        raise InputError(f"{path} line 1: not the header of a draw file: draw anew and write it")
    shots, seed = header.get("shots"), header.get("seed")
    if type(shots) is not int or type(seed) is not int:
        raise InputError(f"{path} line 1: shots and seed must be whole numbers: draw again")
    if header.get("content_hash") != dataset.content_hash:
        raise InputError(
            f"{path}: drawn from other data ({header.get('dataset')}) than this {dataset.name}: draw again"
        )
    splits = ("train", "val")
    known = {split: {item.path: item for item in dataset.split(split)} for split in splits}
    items: dict[str, list[Item]] = {split: [] for split in splits}
    for number, line in enumerate(lines[1:], start=2):
        row = _object(path, number, line)
        split = str(row.get("split"))
        item = known.get(split, {}).get(as_name(str(row.get("image"))))
        if item is None:
            raise InputError(f"{path} line {number}: {row.get('image')!r} is not in that split: draw again")
        items[split].append(item)
    train, val = (tuple(items[split]) for split in splits)
    drawn = Draw(dataset.name, dataset.content_hash, shots, seed, dataset.classes, train, val)
    if drawn.hash != header.get("hash"):
        raise InputError(f"{path}: its items do not match its hash, so it was altered: draw again")
    return drawn


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{path} line {number}: not a JSON object: draw again")
    return value
