"""Prediction: class features drawn once into a bank, then reused for every image."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError, NoNumberError
from pbprompt.evidence.label_head import LabelHead
from pbprompt.learners.method import Method
from pbprompt.learners.predictive import DIGITS, Predictive
from pbprompt.learners.zeroshot import ZeroShot
from pbprompt.model.hierarchy import Pairs
from pbprompt.seeding import generator
from pbprompt.vision.features.cache import Features
from pbprompt.vision.similarity import at_least_float32, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

SAMPLES = 20
MOST_SAMPLES = 10_000  # the figures of many fewer no longer move; more only fill the memory
CHUNK = 1 << 26  # logits [S, B, C] held at once


@dataclass(frozen=True, eq=False)
class Predictor:
    """A method with its sampled classifiers [S, C, d], good while it stays prepared for `classes`."""

    method: Method
    bank: Float[Tensor, "s c d"]
    classes: tuple[str, ...]
    seed: int = 0  # of the bank
    temperature: float = 1.0  # of the mean over the samples
    independent: bool = False  # each name by itself
    hierarchy: Pairs = ()  # what each class or group belongs to
    ratio: Float[Tensor, " c"] | None = None  # how much more often classes come than in training

    @torch.no_grad()
    def __call__(self, images: Encoded) -> Predictive:
        """Probabilities and their doubt for each image, exact for the bank's samples."""
        if self.method.classes != self.classes:
            raise RuntimeError("the method was prepared for other classes since: make a new predictor")
        at_once = max(1, CHUNK // (self.bank.shape[0] * self.bank.shape[1]))
        parts = [
            self._read(*self.method.answer(Encoded(*chunk), self.bank))
            for chunk in zip(images.global_.split(at_once), images.patches.split(at_once), strict=True)
        ]
        answers = Predictive.concatenate(parts).of_classes(self.classes)
        if not answers.probabilities.isfinite().all():
            raise NoNumberError(
                "the answer is NaN, since the towers' features or the model's weights are: "
                "take float32, or fit the model again"
            )
        return answers if self.independent else answers.tempered(self.temperature, self.ratio)

    def _read(self, logits: Float[Tensor, "s b c"], familiarity: Float[Tensor, " b"] | None) -> Predictive:
        """`independent`: p(c | x) = sigmoid(logit + b), b the bias of a backbone trained with such a loss."""
        if not self.independent:
            return replace(Predictive.of_logits(logits), familiarity=familiarity)
        bias = self.method.backbone.logit_bias or 0.0
        return Predictive.of_independent((at_least_float32(logits[0]) + bias).sigmoid())


@torch.no_grad()
def predictive(method: Method, samples: int = SAMPLES, seed: int = 0) -> Predictor:
    """Draw `samples` classifiers with a seed; equal seeds give equal predictions on every machine."""
    if not 1 <= samples <= MOST_SAMPLES:
        raise InputError(f"samples is {samples}: give 1 to {MOST_SAMPLES:,}")
    bank = method.combine(method.class_features(samples, generator(seed)))
    return Predictor(method, bank, method.classes, seed)


def zero_shot(backbone: Backbone, classes: Sequence[str], template: str) -> Predictor:
    """The backbone's own classifier for these names."""
    method = ZeroShot(ZeroShot.Config(), backbone)
    method.prepare(classes, template)
    return predictive(method)


def predict_features(predictor: Predictor, features: Features) -> Predictive:
    """Predictions for every image of a split, on the method's device.

    Several processes share the images, unless each image has its own prompts: then they share the classes.
    """
    device = predictor.method.backbone.device
    if predictor.method.image_conditioned:
        return predictor(features.images.to(device))
    mine = predictor(features.subset(distributed.own(range(len(features)))).images.to(device))
    return mine.mapped(lambda values: distributed.gather(values, len(features)))


def predict_labels(head: LabelHead, classes: Sequence[str], images: Encoded) -> Predictive:
    """Which labels each image has, perhaps none, with the probability of every label as it is shown: rounded.

    Labels are independent, so that the doubt about an image is the sum of the doubts about its labels.
    """
    exact = head.probabilities(unit(images.global_.to(head.weight.device).float()))
    if not exact.isfinite().all():
        raise NoNumberError(
            "the answer is NaN, since the towers' features are: take float32, or encode again"
        )
    shown = exact.double().cpu().round(decimals=DIGITS)
    answers = Predictive.of_independent(shown).of_classes(classes)
    return replace(answers, given=shown >= shown.new_tensor(thresholds(head)))


def thresholds(head: LabelHead) -> list[float]:
    """The probability from which on an image is said to have each label."""
    return [round(value, 2) for value in head.threshold.tolist()]
