"""What the approximate ways of `predict` gain and change: `--fast-resize`, `--precision bfloat16`, and both.

    python -m benchmarks.approximate --root DATA
    python -m benchmarks.approximate --root DATA --backbone lite-vit
    python -m benchmarks.approximate --rates

With --root, on test images of a dataset: the default method is fitted to exact features of 16 images a
class, and answers on features by each way. Told are the share of the squares' values that are off and by how
much, the cosine with the exact features, the share of answers that change, the accuracy, and the largest
change of a probability.

With --rates, milliseconds of a processor that an image takes in each image tower (ViT-B/16 has random
weights), in float32 and in bfloat16, on one and on two threads, in batches of 1, of what the package takes
and of 64: in turns, the quickest of each, since other work on the machine slows all of them.
"""

import argparse
import copy
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.speed.setups import make_backbone
from pbprompt.learners.method import make_config
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.features.encode import default_batch
from pbprompt.vision.images.decoding import squares_of
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.rounding import round_image_tower

WAYS = {
    "exact": (False, False),
    "fast-resize": (True, False),
    "bfloat16": (False, True),
    "both": (True, True),
}
SHOTS, SEED = 16, 1
TURNS = {"lite": 7, "lite-vit": 7, "ViT-B/16": 2}


def by_way(exact: Backbone, way: str) -> Backbone:
    """The same towers, seeing by another way."""
    fast, rounded = WAYS[way]
    other = copy.deepcopy(exact)
    other.preprocess = replace(other.preprocess, fast=fast)
    if rounded:
        round_image_tower(other)
    return other


def off(backbone: Backbone, dataset: Dataset, items: tuple[Item, ...]) -> tuple[float, int]:
    """The share of the squares' values that the fast resize changes, and by how much at most."""
    paths, look = [dataset.file(item) for item in items], backbone.preprocess.cropper
    shares, most = [], 0
    for one, other in zip(squares_of(paths, look), squares_of(paths, replace(look, fast=True)), strict=True):
        difference = np.abs(np.asarray(one, int) - np.asarray(other, int))
        shares.append((difference > 0).mean())
        most = max(most, int(difference.max()))
    return float(np.mean(shares)), most


def encoded(features: Features) -> Encoded:
    return Encoded(features.global_, features.patches)


def answers(console: Console, dataset: Dataset, backbone: Backbone, images: int) -> None:
    """How far the features and answers of each way are from the exact ones."""
    kind = find_method("conjugate")
    small = draw(dataset, SHOTS, SEED).apply(dataset)
    model = TunedModel.fit(small, FeatureCache(backbone, progress=False), kind, make_config(kind))
    test = tuple(dataset.test[:: max(1, len(dataset.test) // images)])
    share, most = off(backbone, dataset, test)
    console.print(f"{len(test)} images: {share:.3%} of the squares' values are off, by {most} at most")
    labels = torch.tensor([item.label for item in test])
    table = Table("way", "least cosine", "mean", "answers changed", "accuracy", "probability, most", box=None)
    seen = {
        way: FeatureCache(by_way(backbone, way), progress=False).encode(dataset.root, test) for way in WAYS
    }
    exact, wanted = seen["exact"].global_, model.predictor(encoded(seen["exact"])).probabilities
    for way, features in seen.items():
        said = model.predictor(encoded(features)).probabilities
        cosine = F.cosine_similarity(features.global_, exact)
        changed = (said.argmax(-1) != wanted.argmax(-1)).float().mean()
        right = (said.argmax(-1) == labels).float().mean()
        most_moved = (said - wanted).abs().max()
        table.add_row(
            way, f"{cosine.min():.5f}", f"{cosine.mean():.5f}", f"{changed:.2%}", f"{right:.2%}",
            f"{most_moved:.3f}",
        )  # fmt: skip
    console.print(table)


@torch.inference_mode()
def rates(console: Console, name: str, threads: int) -> None:
    """Milliseconds of a processor an image, in float32 and in bfloat16."""
    torch.set_num_threads(threads)
    exact = load_backbone(name) if name == "lite-vit" else make_backbone(name, "cpu")
    towers = {"float32": exact, "bfloat16": by_way(exact, "bfloat16")}
    table = Table(f"{name}, {threads} threads", *towers, "ratio", box=None)
    for batch in (1, default_batch(exact.device), 64):
        pixels = torch.randn(batch, 3, exact.preprocess.size, exact.preprocess.size)
        took: dict[str, list[float]] = {way: [] for way in towers}
        for _ in range(TURNS[name] if batch == 64 else 2 * TURNS[name]):
            for way, tower in towers.items():
                started = time.process_time()
                tower.image(pixels)
                took[way].append(1000 * (time.process_time() - started) / batch)
        plain, rounded = (min(times) for times in took.values())
        table.add_row(
            f"batches of {batch}", f"{plain:.1f} ms", f"{rounded:.1f} ms", f"{plain / rounded:.2f} ×"
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="where the datasets are")
    parser.add_argument("--data", default="oxford_pets")
    parser.add_argument("--backbone", default="lite")
    parser.add_argument("--images", type=int, default=10_000, help="of the test split, at most about so many")
    parser.add_argument("--rates", action="store_true")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"commit {commit()}")
    if options.root:
        answers(
            console, open_dataset(options.data, options.root), load_backbone(options.backbone), options.images
        )
    if options.rates:
        for name in TURNS:
            for threads in (1, 2):
                rates(console, name, threads)


if __name__ == "__main__":
    main()
