"""What a tuned model's answers on validation images say about when to trust it.

A `Calibration` keeps those answers and is saved beside the model, so that any wanted accuracy or coverage can
be asked for later. Images that were trained on must not be among them, unless a method judges each as if it
had been left out: the model without it has an image less, so that what is promised errs on the safe side.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.learners.fitted import LeavesOut
from pbprompt.learners.predictive import rounded
from pbprompt.model.hierarchy import levels
from pbprompt.model.manifest import CALIBRATION, ModelFiles, opened
from pbprompt.model.metrics.conformal import ByDifficulty, by_difficulty, class_quantiles
from pbprompt.model.metrics.selective import sure_threshold
from pbprompt.model.predictor import Predictor

FORMAT, VERSION = "pbprompt-calibration", 2
ACCURACIES = (0.9, 0.95, 0.99)  # that tables show
CERTAINTY = 0.9  # with which a promised accuracy holds
FEW_ANSWERED = 0.25  # share of images, below which another promise is of more use
COLUMNS = ["confidence", "right", "true", "labels", "predicted", "familiarity"]  # a value for each image
COLUMNS += ["group_confidence", "group_right"]


class Promise(NamedTuple):
    """An accuracy, and the confidence from which on it is promised."""

    accuracy: float
    threshold: float

    def kept(self, confidence: ArrayLike, right: ArrayLike) -> dict[str, float | None]:
        """Counted on answers: the share at or above the threshold, and how many of these are right."""
        above = np.asarray(confidence) >= self.threshold
        share = float(np.asarray(right)[above].mean()) if above.any() else None
        return {
            "promised": self.accuracy,
            "threshold": self.threshold,
            "answered": float(above.mean()),
            "right": share,
        }


class Accepted(NamedTuple):
    """Validation images at or above a threshold, and how many of them are right, each by its weight."""

    images: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """A model's answers on n validation images, and how they were made."""

    confidence: tuple[float, ...]  # probability of the likeliest class
    right: tuple[bool, ...]  # whether that is the true class
    true: tuple[float, ...]  # probability of the true class
    classes: int  # that the model chose from
    classes_seen: int  # that validation images are of
    samples: int  # prompts of each class
    seed: int  # of the sampled prompts
    labels: tuple[str, ...]  # the true class
    left_out: int = 0  # of them, the last so many: training images, each judged by the model without it
    groups: tuple[int, ...] = ()  # the series each is of; none: each is by itself
    group_confidence: tuple[tuple[float, ...], ...] = ()  # of the likeliest group of each level; 0: has none
    group_right: tuple[tuple[bool, ...], ...] = ()  # whether it holds the true class
    mix: Mapping[str, float] = field(default_factory=dict)  # share of each class to come; none: as here
    predicted: tuple[str, ...] = ()  # the likeliest class; none: of a model of before it was kept
    familiarity: tuple[float, ...] = ()  # as `Predictive` has it; none: cannot be told, or as above

    def __post_init__(self) -> None:
        n = len(self.confidence)
        some = (self.groups, self.predicted, self.familiarity, self.group_confidence, self.group_right)
        counts = {len(self.right), len(self.true), len(self.labels), *(len(one) for one in some if one)}
        if n == 0 or counts != {n}:
            raise ValueError("confidence, right, true, labels and groups must have one value for each image")
        if not all(0 <= true <= best <= 1 for true, best in zip(self.true, self.confidence, strict=True)):
            raise ValueError("there must be 0 ≤ true ≤ confidence ≤ 1 for each image")
        if not (1 <= self.classes_seen <= self.classes and self.samples >= 1 and 0 <= self.left_out <= n):
            raise ValueError("classes, classes_seen, samples and left_out must be counts")

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def rests_on(self) -> str:
        """Its images in words."""
        given = {"validation": len(self) - self.left_out, "training": self.left_out}
        parts = [f"{n:,} {kind} {'image' if n == 1 else 'images'}" for kind, n in given.items() if n]
        single = len(self.single)
        series = f" in {single:,} series" if single < len(self) else ""
        each = ", each series left out in turn" if series else ", each left out in turn"
        return " and ".join(parts) + series + (each if self.left_out else "")

    @cached_property
    def single(self) -> "Calibration":
        """One image of each series, by chance: those of a series share their mistakes, so that together they
        say no more of images of other series than one of them does (Dunn, Wasserman and Ramdas, 2022)."""
        if not self.groups:
            return self
        places = list(range(len(self)))
        Random(0).shuffle(places)
        kept = sorted({self.groups[place]: place for place in places}.values())
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        columns = {name: tuple(one[at] for at in kept) if one else () for name, one in columns.items()}
        left_out = sum(place >= len(self) - self.left_out for place in kept)
        return replace(self, **columns, left_out=left_out, groups=())

    def threshold(self, accuracy: float) -> float:
        """The confidence from which on images are this accurate, promised with `CERTAINTY`; infinite where
        these images are too few, or too often wrong, to promise it: then no image is accepted."""
        if not 0 < accuracy < 1:
            raise InputError(f"accuracy is {accuracy:g}: give a share between 0 and 1, such as 0.9")
        return sure_threshold(*self.levels[0], accuracy, CERTAINTY, self.weights)

    def promised(self, accuracy: float) -> Promise:
        """An accuracy or, where that cannot be promised, the highest whole percentage below it that can and
        answers `FEW_ANSWERED` of the images, or else any; without one no image is accepted."""
        if math.isfinite(threshold := self.threshold(accuracy)):
            return Promise(accuracy, threshold)
        return self.instead(FEW_ANSWERED, accuracy) or self.instead(0, accuracy) or Promise(0.0, math.inf)

    def instead(self, share: float, below: float = 1.0) -> Promise | None:
        """The most, below an accuracy, that can be promised of this share of images, or of more."""
        least, able = share * len(self.single), [one for one in self.promises if one.accuracy < below]
        return next((one for one in able[::-1] if self.accepted(one.threshold).images >= least), None)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """How many images to come each of `single` stands for, by its class: 1 on average."""
        labels = self.single.labels
        if not self.mix:
            return np.ones(len(labels))
        count = Counter(labels)
        weights = np.array([self.mix.get(label, 0.0) / count[label] for label in labels])
        return weights * (len(labels) / weights.sum())

    @cached_property
    def levels(self) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
        """How sure and whether right, one image of each series: by its class, and by each level of groups."""
        one = self.single
        groups = zip(zip(*one.group_confidence, strict=True), zip(*one.group_right, strict=True), strict=True)
        return [(np.array(sure), np.array(hit)) for sure, hit in ((one.confidence, one.right), *groups)]

    def back_off(self, accuracy: float) -> tuple[float, ...]:
        """Thresholds of classes and of each level of groups from which on answers are this accurate.

        Level after level, the images that no narrower level answers: each level's answers by themselves are
        promised, all levels together with `CERTAINTY`. Infinite where a level can promise nothing.
        """
        if len(self.levels) == 1:
            raise InputError("the model knows of no groups of classes: fit it with --hierarchy FILE")
        left, found = np.ones(len(self.single), dtype=bool), []
        certainty = 1 - (1 - CERTAINTY) / len(self.levels)
        for sure, hit in self.levels:
            own, threshold = left & (sure > 0), math.inf
            if own.any():
                threshold = sure_threshold(sure[own], hit[own], accuracy, certainty, self.weights[own])
            found.append(threshold)
            left &= sure < threshold
        return tuple(found)

    def answered(self, thresholds: Sequence[float]) -> list[Accepted]:
        """How these images fare, one of each series, at each level of `back_off`."""
        left, found = np.ones(len(self.single), dtype=bool), []
        for (sure, right), threshold in zip(self.levels, thresholds, strict=False):
            at = left & (sure >= threshold)
            weights = self.weights * at
            found.append(Accepted(float(weights.sum()), float(weights @ right)))
            left &= ~at
        return found

    def accepted(self, threshold: float) -> Accepted:
        """How the validation images fare at a threshold, one of each series."""
        return self.answered([threshold])[0]

    def surest(self, count: int) -> Accepted:
        """How those fare that it is surest of: `count` of them, or more where several are as sure."""
        return self.accepted(sorted(self.single.confidence, reverse=True)[count - 1])

    @cached_property
    def promises(self) -> tuple[Promise, ...]:
        """Whole percentages from a half on that can be promised, each by itself."""
        found = (Promise(percent / 100, self.threshold(percent / 100)) for percent in range(50, 100))
        return tuple(one for one in found if math.isfinite(one.threshold))

    @property
    def trade(self) -> list[dict[str, float | None]]:
        """What each promise answers of one image of each series, and how many of the answers are right."""
        return [one.kept(self.single.confidence, self.single.right) for one in self.promises]

    def joined(self, other: "Calibration") -> "Calibration":
        """These answers, then those of training images that were left out."""
        columns = ((name, getattr(self, name), getattr(other, name)) for name in COLUMNS)
        both: dict[str, Any] = {name: one + two if one and two else () for name, one, two in columns}
        if self.groups or other.groups:
            mine = self.groups or tuple(range(len(self)))
            theirs = other.groups or range(len(other))
            both["groups"] = mine + tuple(max(mine) + 1 + group for group in theirs)
        seen = len({*self.labels, *other.labels})
        return replace(self, **both, left_out=other.left_out, classes_seen=seen)

    def quantile(self, coverage: float) -> ByDifficulty:
        """q of `conformal.py`, for `prediction_set`; infinite where n is too small for the coverage."""
        return by_difficulty(self.single.confidence, self.single.true, coverage)

    def class_quantiles(self, classes: Sequence[str], coverage: float) -> tuple[float, ...]:
        """q of each class, for sets that hold the true one this often whatever class it is."""
        return class_quantiles(self.single.true, self.single.labels, classes, coverage)


def chosen(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows by what they promise, ascending, those of `ACCURACIES`, or the most below that can be."""
    best = [[row for row in rows if row["promised"] <= wanted + 1e-9][-1:] for wanted in ACCURACIES]
    return list({row["promised"]: row for few in best for row in few}.values())


def calibrate(
    predictor: Predictor,
    probabilities: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"] | None = None,
    familiarity: Float[Tensor, " n"] | None = None,
    *,
    left_out: bool = False,
) -> Calibration:
    """By what is said of labelled images; `groups`: their series; `left_out`: they are training images."""
    probabilities, labels = probabilities.cpu(), labels.cpu()
    best, predicted = probabilities.max(-1)
    sure, hits = [], []
    for level in levels(predictor.hierarchy, predictor.classes):
        confidence, place = level.likeliest(np.asarray(rounded(probabilities)))
        sure.append(confidence.tolist())
        hits.append(level.members[labels.numpy(), place].tolist())
    true = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return Calibration(
        confidence=tuple(rounded(best)),
        right=tuple((predicted == labels).tolist()),
        true=tuple(rounded(true)),
        classes=len(predictor.classes),
        classes_seen=len(labels.unique()),
        samples=predictor.bank.shape[0],
        seed=predictor.seed,
        labels=tuple(predictor.classes[label] for label in labels.tolist()),
        left_out=len(labels) * left_out,
        group_confidence=tuple(zip(*sure, strict=True)),
        group_right=tuple(zip(*hits, strict=True)),
        groups=() if groups is None or len(groups.unique()) == len(groups) else tuple(groups.tolist()),
        predicted=tuple(predictor.classes[place] for place in predicted.tolist()),
        familiarity=() if familiarity is None else tuple(rounded(familiarity)),
    )


def calibrate_left_out(predictor: Predictor) -> Calibration | None:
    """The same of training images, each judged by the model without it; None where the method cannot."""
    method = predictor.method.fitted
    found = method.left_out() if isinstance(method, LeavesOut) else None
    if found is None:
        return None
    likely, labels, *others = found
    logits, labels = likely.cpu().float().clamp_min(torch.finfo(torch.float32).tiny).log(), labels.cpu()
    often = torch.ones(logits.shape[1]) if predictor.ratio is None else predictor.ratio.cpu()
    come = often[labels] > 0
    if not come.any():
        return None
    probabilities = (logits / predictor.temperature + often.to(logits).log()).softmax(-1)
    series, familiar = (None if one is None else one.cpu()[come] for one in others)
    return calibrate(predictor, probabilities[come], labels[come], series, familiar, left_out=True)


def calibration_text(calibration: Calibration) -> str:
    """What `calibration.json` holds."""
    values = {"format": FORMAT, "version": VERSION, "images": len(calibration), **asdict(calibration)}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"


def read_calibration(folder: Path | ModelFiles) -> Calibration | None:
    """A model's, checked; None where it was fitted without validation images."""
    files = opened(folder)
    path, content = files.folder / CALIBRATION, files.part(CALIBRATION)
    if content is None:
        return None
    try:
        values = json.loads(content)
        if values.pop("format") != FORMAT or values.pop("version") != VERSION:
            raise ValueError("another format")
        images = values.pop("images")
        calibration = from_dict(Calibration, values, "field")
        if images != len(calibration):
            raise ValueError(f"images is {images}, but there are {len(calibration)}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: not a calibration of pbprompt ({why}): fit the model again") from None
    return calibration
