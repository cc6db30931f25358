"""Several backbones in one model, beside each of them alone.

    python -m benchmarks.several_backbones --features FOLDER --root DATA --out FILE
    python -m benchmarks.several_backbones --root DATA --out FILE       # times alone, into the same file

FOLDER holds `caltech101.npz` as `benchmarks/on_clip.py` reads it; DATA has the photographs of Caltech101 and
OxfordPets, which `lite` and `lite-vit` see here. Beside CLIP photographs are drawn from the validation split
and the test split judges, as there: once with the classes whose names both CLIPs have text of, once by images
alone, of all classes. `lite` and `lite-vit` are drawn from the training split and judged by the validation
split. Accuracy in %, NLL, ECE in %, means over three draws; of several, what they are ahead of whichever of
theirs alone has the best mean NLL, with 95 % intervals (images and draws resampled in pairs), and their worst
draw.

Times are processor milliseconds of an image from its file to features that are kept, and of its answer in
memory, by `lite`, `lite-vit` and both in turns.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.on_clip import ahead
from benchmarks.patches import seconds
from benchmarks.problems import figures
from pbprompt import EvidenceClassifier
from pbprompt.files import write_text
from pbprompt.learners.zeroshot import ZeroShot, ZeroShotConfig
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.loading.load import load_backbone

SEEDS = (1, 2, 3)
TIMED, TURNS = 24, 4
SHOTS = (1, 2, 4, 8, 16)
CLIP = {"B/32": "vitb32", "B/16": "vitb16"}
TOGETHER = (("B/32", "B/16"), ("lite", "B/32"), ("lite", "B/32", "B/16"), ("lite", "lite-vit"))
Table = NDArray[np.float32]


class Seen(NamedTuple):
    """Photographs as one backbone sees them, those to draw from first, and its text of the names."""

    images: Table
    texts: Table | None
    scale: float


class Judged(NamedTuple):
    """What one draw gives: accuracy, NLL and ECE; and of each photograph that judges, whether the answer is
    right (in %) and the log-likelihood."""

    figures: list[float]
    each: NDArray[np.float64]


class Source(NamedTuple):
    """`drawn`: how many of the photographs are to draw from; the others judge."""

    title: str
    labels: NDArray[np.int64]
    drawn: int
    seen: Mapping[str, Seen]

    def draw(self, shots: int, seed: int) -> NDArray[np.int64]:
        chance, labels = np.random.default_rng(seed), self.labels[: self.drawn]
        own = (np.flatnonzero(labels == c) for c in range(labels.max() + 1))
        return np.concatenate([chance.permutation(each)[:shots] for each in own])

    def measured(self, names: Sequence[str], shots: int, seed: int) -> Judged:
        """What one or several backbones say after a draw."""
        rows, used = self.draw(shots, seed), [self.seen[name] for name in names]
        texts = [one.texts for one in used]
        model = EvidenceClassifier(
            texts if any(text is not None for text in texts) else None, [one.scale for one in used]
        )
        model.fit([one.images[rows] for one in used], self.labels[rows])
        said = torch.as_tensor(model.predict_proba([one.images[self.drawn :] for one in used])).double()
        truth = torch.from_numpy(self.labels[self.drawn :])
        likely = said.gather(1, truth.unsqueeze(1)).squeeze(1).clamp_min(1e-38).log()
        return Judged(figures(said, truth), torch.stack([100.0 * (said.argmax(1) == truth), likely]).numpy())


def by_photographs(name: str, dataset: Dataset, items: Sequence[Item]) -> Seen:
    """What an embedded backbone sees, and reads as `conjugate` does."""
    backbone = load_backbone(name)
    reader = ZeroShot(ZeroShotConfig(templates="both"), backbone)
    reader.prepare(dataset.classes, dataset.template)
    texts = unit(reader.class_features(1, torch.Generator()))[0].float().numpy()
    images = FeatureCache(backbone, progress=False).encode(dataset.root, items).global_.numpy()
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
    items = (*dataset.train, *dataset.val)
    seen = {tower: by_photographs(tower, dataset, items) for tower in ("lite", "lite-vit")}
    return Source(name, np.array([item.label for item in items]), len(dataset.train), seen)


def gained(of: Mapping[str, Mapping[int, Sequence[Judged]]], names: Sequence[str]) -> dict[int, Any]:
    """What they are ahead of the best of them alone, by its mean NLL: accuracy and NLL with intervals."""
    found: dict[int, Any] = {}
    for shots, mine in of[" + ".join(names)].items():
        best = min(names, key=lambda name: fmean(one.figures[1] for one in of[name][shots]))
        pairs = [np.stack([one.each for one in draws]) for draws in (mine, of[best][shots])]
        accuracy, likelihood = (pairs[0] - pairs[1]).mean((0, 2))
        ends = ahead(*pairs)
        found[shots] = {
            "beside": best,
            "accuracy": [float(accuracy), *ends["accuracy"]],
            "NLL": [-float(likelihood), *(-end for end in reversed(ends["NLL"]))],
        }
    return found


def times(root: Path) -> dict[str, dict[str, float]]:
    """Of each the quickest of some turns, in one thread; nothing is cached before."""
    torch.set_num_threads(1)
    dataset = open_dataset("oxford_pets", root)
    items = dataset.val[:TIMED]
    pictures = [open_image(dataset.file(item)) for item in items[:4]]
    towers = {"lite": ["lite"], "lite-vit": ["lite-vit"], "lite + lite-vit": ["lite", "lite-vit"]}
    loaded = {name: load_backbone(names) for name, names in towers.items()}
    found = {name: {"encode": float("inf"), "tower": float("inf")} for name in loaded}
    for _ in range(TURNS):
        for name, backbone in loaded.items():
            with TemporaryDirectory() as cache:
                bank = FeatureCache(backbone, cache=Path(cache), workers=1, progress=False)
                spent = seconds(partial(bank.encode, dataset.root, items), 1) / len(items)
            batch = torch.stack([backbone.preprocess(one) for one in pictures])
            with torch.inference_mode():
                alone = seconds(partial(backbone.image, batch), 3) / len(batch)
            for what, taken in (("encode", spent), ("tower", alone)):
                found[name][what] = min(found[name][what], 1000 * taken)
    return found


def lost(of: Mapping[str, Mapping[int, Sequence[Judged]]], names: Sequence[str]) -> str:
    """How far one is from whichever of its backbones is best alone on the same draw, at worst."""
    below, beyond = [], []
    for shots, rows in of[" + ".join(names)].items():
        for draw, (accuracy, nll, _) in enumerate(one.figures for one in rows):
            alone = [of[name][shots][draw].figures for name in names]
            below.append(accuracy - max(one[0] for one in alone))
            beyond.append(nll - min(one[1] for one in alone))
    return f"{' + '.join(names)}, its worst draw: {min(below):+.2f} points, NLL {max(beyond):+.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--features", "--root", "--out"):
        parser.add_argument(option, type=Path, required=option != "--features")
    given = parser.parse_args()
    milliseconds = times(given.root)
    taken = {"commit": commit(), "milliseconds": milliseconds}
    for name, one in milliseconds.items():
        print(f"{name}: {one['encode']:.1f} ms an image, {one['tower']:.1f} of them its towers")
    if given.features is None:
        record = json.loads(given.out.read_text(encoding="utf-8"))
        write_text(given.out, json.dumps({**record, "times": taken}, indent=1) + "\n")
        return
    record = {"commit": commit(), "seeds": SEEDS, "shots": SHOTS, "figures": {}, "gained": {}, "times": taken}
    for source in (*beside_clip(given.features, given.root), embedded("oxford_pets", given.root)):
        print(f"\n| {source.title} | " + " | ".join(map(str, SHOTS)) + " |\n|" + "---|" * (len(SHOTS) + 1))
        of: dict[str, dict[int, list[Judged]]] = {}
        together = [names for names in TOGETHER if set(names) <= set(source.seen)]
        for names in (*((name,) for name in source.seen), *together):
            by_shots = {n: [source.measured(names, n, seed) for seed in SEEDS] for n in SHOTS}
            of[" + ".join(names)] = by_shots
            draws = ([one.figures for one in judged] for judged in by_shots.values())
            cells = [[fmean(column) for column in zip(*rows, strict=True)] for rows in draws]
            shown = [f"{accuracy:.1f} / {nll:.3f} / {ece:.1f}" for accuracy, nll, ece in cells]
            print(f"| {' + '.join(names)} | " + " | ".join(shown) + " |", flush=True)
        record["figures"][source.title] = {
            name: {n: [one.figures for one in judged] for n, judged in by_shots.items()}
            for name, by_shots in of.items()
        }
        gains = {" + ".join(names): gained(of, names) for names in together}
        record["gained"][source.title] = gains
        for name, by_size in gains.items():
            shown = [
                f"{one['accuracy'][0]:+.2f} ({one['accuracy'][1]:+.2f} to {one['accuracy'][2]:+.2f}) / "
                f"{one['NLL'][0]:+.3f} ({one['NLL'][1]:+.3f} to {one['NLL'][2]:+.3f})"
                for one in by_size.values()
            ]
            print(f"| {name}, ahead of its best | " + " | ".join(shown) + " |", flush=True)
        for names in together:
            print(lost(of, names), flush=True)
        write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
