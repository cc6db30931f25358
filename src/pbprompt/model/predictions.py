"""One record per image: what is in it, how sure that is, and what to do with it."""

from dataclasses import dataclass
from typing import Any

import torch

from pbprompt.learners.abilities import TellsFamiliarity, can
from pbprompt.learners.memory import Memory
from pbprompt.model.metrics.conformal import ByDifficulty, prediction_set
from pbprompt.model.predictor import DIGITS, Predictor, rounded
from pbprompt.vision.towers.backbone import Encoded


@dataclass(frozen=True)
class Rule:
    """What decides: a confidence threshold, conformal quantiles (by difficulty, or of each class), a rate of
    wrong refusals; None: nothing."""

    threshold: float | None = None
    quantile: ByDifficulty | tuple[float, ...] | None = None
    refusal: float | None = None


NO_RULE = Rule()


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image; probabilities and nats are rounded as they are shown.

    Of a multi-label model `labels` are those at or above their thresholds, and `label` is the likeliest,
    given or not; the probabilities do not sum to 1.
    """

    label: str
    scores: dict[str, float]  # probability of every class, in the classes' order
    spreads: dict[str, float]  # standard deviation of each over the sampled prompts
    entropy: float  # the whole doubt, in nats
    epistemic: float  # the part of it that the sampled prompts disagree on
    unsure: bool | None = None  # the label's probability is below the threshold; None without a threshold
    prediction_set: tuple[str, ...] | None = None  # likeliest first; None without a quantile
    familiarity: float | None = None  # share of images of its classes that look less so; None: cannot be told
    unknown: bool | None = None  # it looks like none of the classes; None without a rate of refusals
    labels: tuple[str, ...] | None = None  # likeliest first, perhaps none; None of a single-label model

    @property
    def score(self) -> float:
        """The probability of the label."""
        return self.scores[self.label]

    @property
    def spread(self) -> float:
        """The spread of the label's probability."""
        return self.spreads[self.label]

    def likeliest(self, top_k: int | None = None) -> list[tuple[str, float]]:
        """Classes with their probabilities, likeliest first."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])[:top_k]

    def to_dict(self, top_k: int | None = None) -> dict[str, Any]:
        """As it is written and sent, the same fields everywhere: all classes in order, or the likeliest."""
        shown = self.likeliest(top_k) if top_k else list(self.scores.items())
        if self.labels is not None:
            return {"labels": list(self.labels), "scores": dict(shown)}
        return {
            "label": self.label,
            "score": self.score,
            "spread": self.spread,
            "scores": dict(shown),
            "spreads": {name: self.spreads[name] for name, _ in shown},
            "entropy": self.entropy,
            "epistemic": self.epistemic,
            "unsure": self.unsure,
            "prediction_set": None if self.prediction_set is None else list(self.prediction_set),
            "familiarity": self.familiarity,
            "unknown": self.unknown,
        }


def predictions(predictor: Predictor, images: Encoded, rule: Rule = NO_RULE) -> list[Prediction]:
    """The record of each image."""
    said, names = predictor(images), predictor.classes
    with torch.no_grad():
        method = predictor.method
        familiarity = method.familiarity(images) if can(method, TellsFamiliarity) else None
    best = said.probabilities.cpu().numpy().argmax(axis=-1)  # the first of equals
    columns = (best, rounded(said.probabilities), rounded(said.spreads))
    doubts = zip(said.entropy.tolist(), said.mutual_information.tolist(), strict=True)
    familiar = [None] * len(best) if familiarity is None else rounded(familiarity)
    seen = method.labels_of_classes() if isinstance(method, Memory) else [0] * len(names)
    records = []
    for top, row, spreads, (entropy, epistemic), share in zip(*columns, doubts, familiar, strict=True):
        among = None if rule.quantile is None else prediction_set(row, rule.quantile)
        records.append(
            Prediction(
                label=names[top],
                scores=dict(zip(names, row, strict=True)),
                spreads=dict(zip(names, spreads, strict=True)),
                entropy=round(entropy, DIGITS),
                epistemic=round(epistemic, DIGITS),
                unsure=None if rule.threshold is None else row[top] < rule.threshold,
                prediction_set=None if among is None else tuple(names[index] for index in among),
                familiarity=share,
                unknown=None
                if share is None or rule.refusal is None
                else share <= rule.refusal and seen[top] >= 0,  # a mere name is for the rest
            )
        )
    return records
