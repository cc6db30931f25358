"""Linear probe: logistic regression on the image features, no text (Radford et al., 2021).

    min over W, b of   C·Σ_i −log softmax(W f_i + b)[y_i] + ½‖W‖²               f = f(x)/‖f(x)‖

W, b are a weight vector and a bias per class; C says how far the images are trusted against W = 0.

C is chosen by cross-validation within the training images (five folds or as many as the largest class has
images; the mean log-likelihood decides) among s²/d·10^(−2, −1.5, …), up to s²/(d v)·10², v the variance of f:
where all features share a large offset, little is left to tell them by. s²/d, with s = exp(logit scale), is
the C whose penalty is the prior under which a weight vector is as long as zero-shot's, ‖W_c‖² = s² on
average. It is used as it is where cross-validation is impossible, with one image per class. The published
probe searches C on validation images, on features that are not normalised.

It has no use for a class name; a class without images has no chance, which is the limit of the fit.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.folds import held_out
from pbprompt.evidence.rivals.linear import LinearClassifier
from pbprompt.evidence.rivals.logistic import logistic_regression
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.registry import register

ROUGH = 1e-4  # gradient at which a fold's fit is good enough to be compared


@dataclass(frozen=True, kw_only=True)
class LinearProbeConfig(MethodConfig):
    """Nothing to set but how C is found."""

    strength: float = setting(
        0.0, "C of the logistic regression; 0: by cross-validation within the images", least=0
    )


@register("linear-probe")
class LinearProbe(LinearClassifier):
    """Logistic regression on frozen features."""

    Config = LinearProbeConfig
    needs_text = False
    takes_several = True
    takes_new_names = False
    revision = 2  # C is searched further where features share an offset
    paper = "Radford et al., 2021"
    config: LinearProbeConfig

    def solve(
        self, x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], text: Float[Tensor, "k d"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        typical = float(self.backbone.logit_scale) ** 2 / x.shape[1]
        strength = self.config.strength or best_strength(x, labels, typical, self.image_groups)
        (found,) = logistic_regression(x.double(), labels, [strength])
        return *found, torch.zeros_like(found.bias)


def best_strength(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    typical: float,
    groups: Int[Tensor, " n"] | None = None,
) -> float:
    """The C near `typical` with the best log-likelihood of images held out with their series (`groups`);
    `typical` where none can be."""
    variance = float((x - x.mean(0)).square().sum(1).mean().clamp(1e-12, 1))
    strengths = [typical * 10 ** (half / 2) for half in range(-4, 5 + math.ceil(-2 * math.log10(variance)))]
    losses = torch.zeros(len(strengths), dtype=torch.float64)
    folds = held_out(labels, groups)
    for held in folds:
        fits = logistic_regression(x[~held], labels[~held], strengths, tolerance=ROUGH)
        for place, fit in enumerate(fits):
            losses[place] += F.cross_entropy(fit.logits(x[held]), labels[held], reduction="sum").item()
    return strengths[int(losses.argmin())] if folds else typical
