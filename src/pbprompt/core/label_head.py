"""One-vs-rest fitted: the log-odds of every label are affine in the image, so that is all there is to keep.

p(c | x) = σ(w_c·x + b_c),   the label is given where p(c | x) ≥ τ_c
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.core.label_choice import LabelChoice, choose_label_settings, choose_thresholds
from pbprompt.core.one_vs_rest import Labelled, label_statistics, left_out_products, products

CELLS = 1 << 21  # of a table of left-out images by labels or dimensions


class LabelHead(NamedTuple):
    """What tells of an image which labels it has."""

    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, " k"]
    threshold: Float[Tensor, " k"]
    """τ, a probability"""
    positives: Float[Tensor, " k"]
    """training images with the label"""

    def probabilities(self, images: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Of unit image features."""
        return torch.sigmoid(images.to(self.weight) @ self.weight.T + self.bias)


def fit_label_head(
    images: Float[Tensor, "n d"], targets: Float[Tensor, "n k"], texts: Float[Tensor, "k d"]
) -> LabelHead:
    """From unit image features, 1 where an image has a label and 0 where not, and the names' features.

    Of very many images, some that lie evenly among them are left out in turn and stand for all.
    """
    known = label_statistics(images, targets, texts)
    most = max(1, CELLS // max(targets.shape[1], known.width))
    rows = slice(None, None, -(-len(images) // most))
    y = targets[rows].double()
    left = left_out_products(known, images[rows].double() @ known.basis, y)
    choice = choose_label_settings(left, y, known.width)
    threshold = choose_thresholds(torch.sigmoid(choice.log_odds(left)), y)
    weight, bias = affine(known, choice)
    return LabelHead(weight.float(), bias.float(), threshold.float(), known.counts.float())


def affine(known: Labelled, choice: LabelChoice) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """w and b, read off the log-odds at 0 and at the ends of the axes."""
    axes = torch.eye(known.width, dtype=torch.float64, device=known.basis.device)
    bias = choice.log_odds(products(known, torch.zeros_like(axes[:1])))
    along = choice.log_odds(products(known, axes)) - bias
    return along.T @ known.basis.T, bias[0]
