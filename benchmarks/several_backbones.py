"""Several backbones in one model, beside each of them alone.

    python -m benchmarks.several_backbones --features FOLDER --root DATA --out FILE

FOLDER holds `caltech101.npz` as `benchmarks/on_clip.py` reads it; DATA has the photographs of Caltech101 and
OxfordPets, which `lite` and `lite-vit` see here. Beside CLIP photographs are drawn from the validation split
and the test split judges, as there: once with the classes whose names both CLIPs have text of, once by images
alone, of all classes. `lite` and `lite-vit` are drawn from the validation split and judged by the rest of it.
Accuracy in %, NLL, ECE in %, means over three draws.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.evidence_parts import figures
from pbprompt import EvidenceClassifier
from pbprompt.files import write_text
from pbprompt.learners.zeroshot import ZeroShot, ZeroShotConfig
from pbprompt.research.runs.provenance import commit
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.loading.load import load_backbone

SEEDS = (1, 2, 3)
SHOTS = (1, 2, 4, 8)
CLIP = {"B/32": "vitb32", "B/16": "vitb16"}
TOGETHER = (("B/32", "B/16"), ("lite", "B/32"), ("lite", "B/32", "B/16"), ("lite", "lite-vit"))
Table = NDArray[np.float32]


class Seen(NamedTuple):
    """Photographs as one backbone sees them, those to draw from first, and its text of the names."""

    images: Table
    texts: Table | None
    scale: float


class Source(NamedTuple):
    """`drawn`: how many of the photographs are to draw from; where all are, the rest of them judge."""

    title: str
    labels: NDArray[np.int64]
    drawn: int
    seen: Mapping[str, Seen]

    def draw(self, shots: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        chance, labels = np.random.default_rng(seed), self.labels[: self.drawn]
        own = (np.flatnonzero(labels == c) for c in range(labels.max() + 1))
        rows = np.concatenate([chance.permutation(each)[:shots] for each in own])
        others = np.arange(self.drawn, len(self.labels))
        return rows, others if len(others) else np.setdiff1d(np.arange(self.drawn), rows)

    def measured(self, names: Sequence[str], shots: int, seed: int) -> list[float]:
        """Accuracy, NLL and ECE of one or several backbones."""
        (rows, others), used = self.draw(shots, seed), [self.seen[name] for name in names]
        texts = [one.texts for one in used]
        model = EvidenceClassifier(
            texts if any(text is not None for text in texts) else None, [one.scale for one in used]
        )
        model.fit([one.images[rows] for one in used], self.labels[rows])
        said = model.predict_proba([one.images[others] for one in used])
        return figures(torch.as_tensor(said).double(), torch.from_numpy(self.labels[others]))


def by_photographs(name: str, dataset: Dataset, items: Sequence[Item]) -> Seen:
    """What an embedded backbone sees, and reads as `conjugate` does."""
    backbone = load_backbone(name)
    reader = ZeroShot(ZeroShotConfig(templates="both"), backbone)
    reader.prepare(dataset.classes, dataset.template)
    texts = unit(reader.class_features(1, torch.Generator()))[0].float().numpy()
    images = FeatureBank(backbone, progress=False).encode(dataset.root, items).global_.numpy()
    return Seen(images, texts, float(backbone.logit_scale))


def beside_clip(features: Path, root: Path) -> list[Source]:
    dataset, stored = open_dataset("caltech101", root), np.load(features / "caltech101.npz")
    labels, drawn = np.concatenate([stored["val_y"], stored["test_y"]]).astype(int), len(stored["val_y"])
    seen = {"lite": by_photographs("lite", dataset, (*dataset.val, *dataset.test))}
    for name, net in CLIP.items():
        images = np.concatenate([stored[f"{net}_val"], stored[f"{net}_test"]]).astype(np.float32)
        seen[name] = Seen(images, stored[f"{net}_text"].astype(np.float32), 100.0)
    named = np.intersect1d(*(stored[f"{net}_named"] for net in CLIP.values()))
    rows = np.isin(labels, named)
    of_named = {
        name: Seen(one.images[rows], one.texts[named], one.scale)
        for name, one in seen.items()
        if one.texts is not None
    }
    few = np.searchsorted(named, labels[rows])
    plain = {name: one._replace(texts=None) for name, one in seen.items()}
    return [
        Source(f"Caltech101, {len(named)} named classes", few, int(rows[:drawn].sum()), of_named),
        Source("Caltech101, images alone", labels, drawn, plain),
    ]


def embedded(name: str, root: Path) -> Source:
    dataset = open_dataset(name, root)
    labels = np.array([item.label for item in dataset.val])
    seen = {tower: by_photographs(tower, dataset, dataset.val) for tower in ("lite", "lite-vit")}
    return Source(name, labels, len(labels), seen)


def lost(of: Mapping[str, Mapping[int, list[list[float]]]], names: Sequence[str]) -> str:
    """How far one is from whichever of its backbones is best alone on the same draw, at worst."""
    below, beyond = [], []
    for shots, rows in of[" + ".join(names)].items():
        for draw, (accuracy, nll, _) in enumerate(rows):
            alone = [of[name][shots][draw] for name in names]
            below.append(accuracy - max(one[0] for one in alone))
            beyond.append(nll - min(one[1] for one in alone))
    return f"{' + '.join(names)}, its worst draw: {min(below):+.2f} points, NLL {max(beyond):+.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--features", "--root", "--out"):
        parser.add_argument(option, type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"commit": commit(), "seeds": SEEDS, "shots": SHOTS, "figures": {}}
    own = (embedded(name, given.root) for name in ("caltech101", "oxford_pets"))
    for source in (*beside_clip(given.features, given.root), *own):
        print(f"\n| {source.title} | " + " | ".join(map(str, SHOTS)) + " |\n|" + "---|" * (len(SHOTS) + 1))
        of = record["figures"][source.title] = {}
        for names in (*((name,) for name in source.seen), *TOGETHER):
            if not set(names) <= set(source.seen):
                continue
            by_shots = {n: [source.measured(names, n, seed) for seed in SEEDS] for n in SHOTS}
            of[" + ".join(names)] = by_shots
            cells = [[fmean(column) for column in zip(*rows, strict=True)] for rows in by_shots.values()]
            shown = [f"{accuracy:.1f} / {nll:.3f} / {ece:.1f}" for accuracy, nll, ece in cells]
            print(f"| {' + '.join(names)} | " + " | ".join(shown) + " |", flush=True)
        for names in TOGETHER:
            if set(names) <= set(source.seen):
                print(lost(of, names), flush=True)
    write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
