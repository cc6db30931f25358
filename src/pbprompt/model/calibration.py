"""What a tuned model's answers on validation images say about when to trust it.

A `Calibration` keeps those answers and is saved beside the model, so that any wanted accuracy or coverage can
be asked for later. Images that were trained on must not be among them: the model is too sure of those.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pbprompt.core.temperature import fit_temperature
from pbprompt.errors import InputError
from pbprompt.evaluate.conformal import conformal_quantile
from pbprompt.features.bank import Features
from pbprompt.model.manifest import CALIBRATION, ModelFiles, opened
from pbprompt.model.predictor import Predictor
from pbprompt.model.scoring import predict_features

FORMAT = "pbprompt-calibration"
DIGITS = 6  # probabilities are compared as they are saved and shown, so that what is read is what decided


class Accepted(NamedTuple):
    """Validation images at or above a threshold, and how many of them are right."""

    images: int
    right: int


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

    def __post_init__(self) -> None:
        n = len(self.confidence)
        if n == 0 or len(self.right) != n or len(self.true) != n:
            raise ValueError("confidence, right and true must have one value for each image")
        if not all(type(answer) is bool for answer in self.right):
            raise ValueError("right must be true or false for each image")
        if not all(0 <= true <= best <= 1 for true, best in zip(self.true, self.confidence, strict=True)):
            raise ValueError("there must be 0 ≤ true ≤ confidence ≤ 1 for each image")
        if not (1 <= self.classes_seen <= self.classes and self.samples >= 1):
            raise ValueError("classes, classes_seen and samples must be counts")

    def __len__(self) -> int:
        return len(self.confidence)

    def threshold(self, accuracy: float) -> float:
        """The lowest confidence of a validation image at which the accepted ones reach the wanted accuracy.

            t = min {c_i : (right among {j : c_j ≥ c_i}) / |{j : c_j ≥ c_i}| ≥ accuracy}

        Infinite where no threshold reaches it: then no image is accepted. This is the empirical choice,
        which is a little optimistic where few images are accepted (a lucky streak counts in full), so
        `accepted` should be told beside it. Bounds strict enough to promise the accuracy accept next to
        nothing on the tens of images that few-shot users have.
        """
        if not 0 < accuracy <= 1:
            raise InputError(f"accuracy is {accuracy:g}: give a share between 0 and 1, such as 0.9")
        levels, accepted, right = self._by_threshold()
        reached = right / accepted >= accuracy
        return float(levels[reached.argmax()]) if reached.any() else math.inf

    def best_accuracy(self) -> float:
        """The highest accuracy that some threshold reaches."""
        _, accepted, right = self._by_threshold()
        return float((right / accepted).max())

    def accepted(self, threshold: float) -> Accepted:
        """How the validation images fare at a threshold."""
        kept = [right for best, right in zip(self.confidence, self.right, strict=True) if best >= threshold]
        return Accepted(len(kept), sum(kept))

    def quantile(self, coverage: float) -> float:
        """q of `conformal.py`, for `prediction_set`; infinite where n is too small for the coverage."""
        return conformal_quantile(self.true, coverage)

    def _by_threshold(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every distinct confidence, ascending, with the images at or above it and the right ones of them."""
        levels, group = np.unique(self.confidence, return_inverse=True)
        images = np.bincount(group)
        right = np.bincount(group, weights=np.asarray(self.right, dtype=np.float64))
        return levels, images[::-1].cumsum()[::-1], right[::-1].cumsum()[::-1]


def calibrate(predictor: Predictor, features: Features, seed: int = 0) -> Calibration:
    """Answer validation images with a tuned predictor; `seed`: the one its prompts were sampled with."""
    probabilities = predict_features(predictor, features).probabilities.cpu()
    labels = features.labels.cpu()
    best, predicted = probabilities.max(-1)
    true = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return Calibration(
        confidence=rounded(best.tolist()),
        right=tuple((predicted == labels).tolist()),
        true=rounded(true.tolist()),
        classes=len(predictor.classes),
        classes_seen=len(labels.unique()),
        samples=predictor.bank.shape[0],
        seed=seed,
    )


def temperature_of(predictor: Predictor, features: Features) -> float:
    """T for the predictor's mean class distribution, fitted to labelled images that it was not tuned on.

    One number fitted to the images that thresholds and sets rest on too: what they promise then holds up to
    that number's freedom, which is small beside that of tens of images.
    """
    said = predict_features(replace(predictor, temperature=1.0), features).probabilities.cpu()
    logits = said.clamp_min(torch.finfo(torch.float32).tiny).log()
    return fit_temperature(logits, features.labels.cpu(), smoothing=1 / (len(features) + 2))


def rounded(probabilities: list[float]) -> tuple[float, ...]:
    """As they are saved, shown and compared; sums a hair above 1 are 1."""
    return tuple(min(1.0, round(value, DIGITS)) for value in probabilities)


def calibration_text(calibration: Calibration) -> str:
    """What `calibration.json` holds."""
    values = {"format": FORMAT, "version": 1, "images": len(calibration), **asdict(calibration)}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"


def read_calibration(folder: Path | ModelFiles) -> Calibration | None:
    """A model's, checked; None where it was fitted without validation images."""
    files = opened(folder)
    path, content = files.folder / CALIBRATION, files.part(CALIBRATION)
    if content is None:
        return None
    try:
        return _parsed(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        why = " ".join(str(error).split())
        raise InputError(f"{path}: not a calibration of pbprompt ({why}): fit the model again") from None


def _parsed(values: dict[str, Any]) -> Calibration:
    if values.pop("format") != FORMAT or values.pop("version") != 1:
        raise ValueError("another format")
    images = values.pop("images")
    for key in ("classes", "classes_seen", "samples", "seed"):
        if type(values[key]) is not int:
            raise ValueError(f"{key} must be a whole number")
    columns = {key: tuple(values[key]) for key in ("confidence", "right", "true")}
    calibration = Calibration(**{**values, **columns})
    if images != len(calibration):
        raise ValueError(f"images is {images}, but there are {len(calibration)}")
    return calibration
