"""Which of many unlabelled images to label next, given what a model says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.core.acquisition import By, choose_rows, margin_doubt
from pbprompt.data.tables import SEPARATOR
from pbprompt.errors import InputError
from pbprompt.model.predictions import Prediction
from pbprompt.seeding import generator

DEFAULT: By = "diverse"  # what needed the fewest labels on validation images: docs/label-next.md


@dataclass(frozen=True)
class Suggestion:
    """Image `row` is worth a label; the model would call it `label`."""

    row: int
    label: str
    probability: float
    score: float
    """its doubt: between the two likeliest classes (0 to 1), or the epistemic part in nats; of a multi-label
    model, summed over the labels, in nats"""


def next_images(
    features: Float[Tensor, "n d"],
    predictions: Sequence[Prediction],
    n: int,
    by: By = DEFAULT,
    seed: int = 0,
) -> list[Suggestion]:
    """The `n` images to label next, in order; row i of the features is that of prediction i.

    `margin` and `epistemic` take the largest doubt and the largest disagreement, `diverse` doubt among images
    that are unlike each other, `random` any. The seed matters to the last two.
    """
    if len(features) != len(predictions):
        raise InputError(f"{len(features)} rows of features and {len(predictions)} predictions: give as many")
    multi_label = any(said.labels is not None for said in predictions)
    if multi_label and by == "epistemic":
        raise InputError("a multi-label model has no sampled classifiers that could disagree: use diverse")
    if multi_label:
        scores = torch.tensor([said.entropy for said in predictions])
    elif by == "epistemic":
        scores = torch.tensor([said.epistemic for said in predictions])
    else:
        scores = margin_doubt(torch.tensor([list(said.scores.values()) for said in predictions]))
    rows = choose_rows(features.cpu(), scores, n, by, generator(seed)).tolist()
    return [
        Suggestion(row, _suggested(predictions[row]), predictions[row].score, float(scores[row]))
        for row in rows
    ]


def _suggested(said: Prediction) -> str:
    """As a table has it."""
    return said.label if said.labels is None else SEPARATOR.join(said.labels)
