"""Which of several backbones to see by: each alone and together, by the training images, each left out.

    d_i(b) = log p_best(y_i | x_i) − log p_b(y_i | x_i)      best: of the least mean NLL
    chosen = the cheapest b whose 95 % interval of mean_i d_i(b) holds 0 or less

What is best by chance alone is not to be paid for: where the images cannot tell two apart, the cheaper one
is taken, and of those that cost the same (within a tenth) the one of the least NLL.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from pbprompt.learners.method import Method, MethodConfig
from pbprompt.model.metrics.resampling import image_counts, interval, resampled_mean
from pbprompt.model.scoring import Fit, log_probabilities, score
from pbprompt.model.series import series_of
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.encode import default_batch
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.load import load_backbone

ROUNDS = 5  # of which the quickest counts
SAME_COST = 1.1  # times the cheapest

Places = tuple[int, ...]  # of the backbones that see together


class Tried(NamedTuple):
    """One backbone, or several together, on training images that were left out."""

    figures: dict[str, float]
    seconds: float
    """of an image, decoded already"""
    behind: tuple[float, float, float]
    """NLL beyond the best one's, and its 95 % interval"""


def tried(
    dataset: Dataset, bank: FeatureCache, kind: type[Method], config: MethodConfig, seed: int, group: str = ""
) -> dict[Places, Tried]:
    """Each choice of the bank's backbones, each fitted to four fifths of the training images five times; the
    same series are left out by all. Empty where no class has two images, or one has none."""
    towers = bank.backbone.towers
    if {item.label for item in dataset.train} != set(range(len(dataset.classes))):
        return {}
    groups = series_of(dataset, dataset.train, bank, group)
    figures, logs, several = {}, {}, {}
    every = range(len(towers))
    for places in (some for size in every for some in combinations(every, size + 1)):
        backbone = load_backbone([towers[place] for place in places])
        features = bank.on(backbone).encode(dataset.root, dataset.train)
        found = Fit(kind, backbone, dataset.classes, dataset.template, seed, config).on_folds(
            features, groups
        )
        if found is None:
            return {}
        rows, answers = found
        truth = features.labels[rows]
        figures[places] = score(answers, features.subset(rows))
        logs[places] = log_probabilities(answers).gather(1, truth.unsqueeze(1)).squeeze(1).numpy()
        several[places] = backbone
    taken = seconds(dataset, list(several.values()))
    best = logs[min(figures, key=lambda places: figures[places]["nll"])]
    return {
        places: Tried(figures[places], spent, behind(best, logs[places]))
        for places, spent in zip(figures, taken, strict=True)
    }


def behind(best: Float[np.ndarray, " n"], other: Float[np.ndarray, " n"]) -> tuple[float, float, float]:
    """The mean of what one is more surprised than the best, with its interval, images resampled in pairs."""
    beyond = best - other
    return float(beyond.mean()), *interval(resampled_mean(beyond, image_counts(len(beyond))))


@torch.inference_mode()
def seconds(dataset: Dataset, backbones: Sequence[Backbone]) -> list[float]:
    """Of each an image's time in its towers, without decoding; in turns, so that what else the machine does
    is shared."""
    some = dataset.train[: default_batch(torch.device("cpu"))]
    pictures = [open_image(dataset.file(item)) for item in some]
    batches = [torch.stack([backbone.preprocess(one) for one in pictures]) for backbone in backbones]
    quickest = [float("inf")] * len(backbones)
    for _ in range(ROUNDS):
        for place, (backbone, batch) in enumerate(zip(backbones, batches, strict=True)):
            before = time.perf_counter()
            backbone.image(batch.to(backbone.device)).global_.cpu()
            quickest[place] = min(quickest[place], time.perf_counter() - before)
    return [taken / len(pictures) for taken in quickest]


def cheapest(found: Mapping[Places, Tried]) -> Places:
    """The cheapest of those that are not worse than the best."""
    able = {places: one for places, one in found.items() if one.behind[1] <= 0}
    least = min(one.seconds for one in able.values())
    cheap = [places for places, one in able.items() if one.seconds <= SAME_COST * least]
    return min(cheap, key=lambda places: able[places].figures["nll"])
