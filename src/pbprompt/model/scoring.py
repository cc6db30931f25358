"""A tuned model on a split: the standard figures, with zero-shot of the same backbone beside them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pbprompt import distributed
from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core.likelihood import Uncertainty
from pbprompt.evaluate.metrics import summary
from pbprompt.features.bank import Features
from pbprompt.methods.zeroshot import ZeroShot
from pbprompt.model.predictor import DIGITS, Predictor, predictive


def zero_shot(backbone: Backbone, classes: Sequence[str], template: str) -> Predictor:
    """The backbone's own classifier for these names."""
    method = ZeroShot(ZeroShot.Config(), backbone)
    method.prepare(classes, template)
    return predictive(method)


def predict_features(predictor: Predictor, features: Features) -> Uncertainty:
    """Predictions for every image of a split, on the method's device.

    Several processes share the images, unless each image has its own prompts: then they share the classes.
    """
    device = predictor.method.backbone.device
    if predictor.method.image_conditioned:
        here = features.to(device)
        return predictor(Encoded(here.global_, here.patches))
    here = features.subset(distributed.own(range(len(features)))).to(device)
    mine = predictor(Encoded(here.global_, here.patches))
    return Uncertainty(*(distributed.gather_items(values, len(features)) for values in mine))


def score(predictor: Predictor, features: Features) -> dict[str, float]:
    """The standard figures of a predictor on a split."""
    return standard_figures(predict_features(predictor, features), features)


def standard_figures(said: Uncertainty, features: Features) -> dict[str, float]:
    """The same of what was said already."""
    floor = torch.finfo(torch.float32).tiny
    return summary(said.probabilities.clamp_min(floor).log().cpu(), features.labels.cpu())


def compare(predictor: Predictor, features: Features, said: Uncertainty) -> dict[str, Any]:
    """The figures of what a tuned model said and, under `zero_shot`, those of the untuned backbone, if that
    reads names."""
    method = predictor.method
    figures: dict[str, Any] = {**standard_figures(said, features), "images": len(features)}
    if method.backbone.reads_text:
        figures["zero_shot"] = score(zero_shot(method.backbone, method.classes, method.template), features)
    return figures


def set_figures(
    said: Uncertainty, features: Features, classes: Sequence[str], coverage: float, quantile: float
) -> dict[str, str | int | float]:
    """How often prediction sets hold the true class, how large they are, and the class that fares worst."""
    shown = said.probabilities.cpu().double().numpy().round(DIGITS)
    labels = features.labels.cpu().numpy()
    likely = 1 - shown <= quantile
    likely[np.arange(len(shown)), shown.argmax(1)] = True  # no set is empty
    held = likely[np.arange(len(shown)), labels]
    images = np.bincount(labels, minlength=len(classes))
    shares = np.bincount(labels, weights=held, minlength=len(images)) / np.maximum(images, 1)
    worst = int(np.where(images > 0, shares, np.inf).argmin())
    return {
        "asked": coverage,
        "coverage": float(held.mean()),
        "mean_size": float(likely.sum(1).mean()),
        "worst_class": classes[worst],
        "worst_class_coverage": float(shares[worst]),
        "worst_class_images": int(images[worst]),
    }
