"""A tuned model on a split: the standard figures, with zero-shot of the same backbone beside them."""

from collections.abc import Sequence
from typing import Any

import torch

from pbprompt import distributed
from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core.likelihood import Uncertainty
from pbprompt.evaluate.metrics import summary
from pbprompt.features.bank import Features
from pbprompt.methods.zeroshot import ZeroShot
from pbprompt.model.predictor import Predictor, predictive


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
    predicted = predict_features(predictor, features)
    floor = torch.finfo(torch.float32).tiny
    return summary(predicted.probabilities.clamp_min(floor).log().cpu(), features.labels.cpu())


def compare(predictor: Predictor, features: Features) -> dict[str, Any]:
    """The tuned model's figures and, under `zero_shot`, those of the untuned backbone."""
    method = predictor.method
    plain = zero_shot(method.backbone, method.classes, method.template)
    return {**score(predictor, features), "images": len(features), "zero_shot": score(plain, features)}
