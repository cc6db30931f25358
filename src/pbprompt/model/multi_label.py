"""The multi-label head of a `TunedModel`: fitted to a method's one-vs-rest, asked, and judged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError, NoNumberError, suggest
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.learners import MultiLabel
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.learners.predictive import DIGITS, Predictive
from pbprompt.model.learn import Bank
from pbprompt.model.metrics.evaluation import MultiLabelEvaluation, mean_average_precision
from pbprompt.model.predictor import zero_shot
from pbprompt.registry import methods
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.names import class_rows, missing_names
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded


def check_multi_label(kind: type[Method]) -> None:
    """Refuse a method that is single-label alone, and name those that are not."""
    able = [name for name, other in methods().items() if issubclass(other, MultiLabel)]
    if kind.name not in able:
        raise InputError(f"{kind.name} is single-label: to fit a multi-label table, use {', '.join(able)}")


def fit_labels(
    dataset: Dataset, bank: Bank, kind: type[Method], config: MethodConfig, options: FitOptions
) -> tuple[Method, LabelHead]:
    """A method prepared for the dataset's labels, and the head that is fitted to all training images."""
    check_multi_label(kind)
    method = build_method(kind, config, bank.backbone, options.seed, dataset.classes, dataset.template)
    options.announce(method)
    if len(dataset.train) < 2:
        raise InputError(f"{dataset.name} has {len(dataset.train)} training images: give two or more")
    wanted = targets(dataset.train, len(dataset.classes))
    for name, count in zip(dataset.classes, wanted.sum(0).tolist(), strict=True):
        if count == len(wanted):
            raise InputError(
                f"{dataset.name}: every training image has the label {name!r}, so nothing tells it apart: "
                "leave it out, or add images without it"
            )
        if not count and not method.takes_new_names:
            raise InputError(
                f"{dataset.name}: no training image has the label {name!r}, and {method.name} with these "
                "settings reads no names: give it some, or another prior"
            )
    features = bank.encode(dataset.root, dataset.train)
    device = method.backbone.device
    images = Encoded(features.global_.to(device), features.patches)
    assert isinstance(method, MultiLabel)  # as `check_multi_label` saw to
    return method, method.label_head(images, wanted.to(device))


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


def evaluate_labels(
    head: LabelHead, method: Method, dataset: Dataset, items: Sequence[Item], features: Features
) -> tuple[dict[str, Any], MultiLabelEvaluation]:
    """Figures on labelled images, whose labels are found among the model's by name, and what is said of each.

    `zero_shot_map` is the mAP of ranking images by their cosine to the names, if the backbone reads names.
    """
    classes, backbone = method.classes, method.backbone
    if new := missing_names(classes, dataset.classes):
        hint = suggest(new[0], classes)
        raise InputError(f"{dataset.name}: the model does not know the label {new[0]!r}: {hint}")
    has = torch.zeros(len(items), len(classes), dtype=torch.bool)
    has[:, class_rows(classes, dataset.classes)] = targets(items, len(dataset.classes)).bool()
    answers = predict_labels(head, classes, features.images).probabilities
    paths = tuple(item.path for item in items)
    evaluation = MultiLabelEvaluation(classes, paths, has, answers, tuple(thresholds(head)))
    figures = dict(evaluation.figures)
    if backbone.reads_text:
        names = unit(zero_shot(backbone, classes, method.template).bank[0])
        cosines = (unit(features.global_.to(names)) @ names.T).cpu()
        figures["zero_shot_map"] = mean_average_precision(cosines, has)
    return figures, evaluation


def targets(items: Sequence[Item], classes: int) -> Float[Tensor, "n k"]:
    """1 where an image has a label, 0 where not."""
    table = torch.zeros(len(items), classes)
    for row, item in enumerate(items):
        table[row, list(item.labels)] = 1
    return table
