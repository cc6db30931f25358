"""From a classifier's parameters and its images to what `TunedModel.fit` takes.

An image counts with its `sample_weight` times the weight of its class.
"""

# ruff: noqa: N803 - X is scikit-learn's name
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.apps.classifier.inputs import (
    ClassNames,
    encode_inputs,
    names_of,
    read_groups,
    read_labels,
    read_sample_weight,
    unlabelled_rows,
)
from pbprompt.config import from_dict, to_dict
from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig, make_config
from pbprompt.model.hierarchy import checked_hierarchy, levels
from pbprompt.model.learn import Bank
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, Dataset, Item
from pbprompt.vision.images.names import described
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.loading.load import load_backbone

ClassWeight = Mapping[Any, float] | str | None
Hierarchy = Mapping[Any, str] | str | None
NESTED = "nested"  # the hierarchy of folders within folders


class GivenFeatures:
    """A bank of images that are encoded already; an item's path is its image's place."""

    def __init__(self, backbone: Backbone, images: Encoded) -> None:
        self.backbone, self.images = backbone, images

    def encode(self, root: Path, items: Sequence[Item]) -> Features:
        rows = [int(item.path) for item in items]
        labels = torch.tensor([item.label for item in items])
        return Features(self.images.global_[rows], self.images.patches[rows], labels)


class Training(NamedTuple):
    """What a classifier is fitted on."""

    dataset: Dataset
    bank: Bank
    labels: NDArray[Any]  # of the classes, in their order
    weights: dict[str, float] | None = None  # of images, by their items' paths
    unlabelled: Float[Tensor, "m d"] | None = None  # features of images whose label is None


def hierarchy_of(dataset: Dataset, labels: Sequence[Any], given: Hierarchy) -> dict[str, str]:
    """What each class and group belongs to, of labels and groups as they are given, or as the data says."""
    if given is None or given == NESTED:
        there = levels(dataset.hierarchy, dataset.classes)
        return checked_hierarchy(dict(dataset.hierarchy), dataset.classes, dataset.name) if there else {}
    if isinstance(given, str):
        raise InputError(f"hierarchy is {given!r}: give {{label: group}}, or {NESTED!r} with a folder")
    names = dict(zip(labels, dataset.classes, strict=True))
    pairs = {names.get(one, str(one)): str(group) for one, group in given.items()}
    return checked_hierarchy(pairs, dataset.classes, "hierarchy")


def own_images(
    X: Any,
    y: Any,
    backbone: Backbone,
    *,
    groups: Any = None,
    eval_set: Any = None,
    sample_weight: Any = None,
    class_names: ClassNames = None,
    template: str | None = None,
    progress: bool = False,
) -> Training:
    """Images and labels as a dataset whose features `GivenFeatures` has.

    Images of `eval_set` are its validation images; those of weight 0 are left out, and those without a label
    are put aside.
    """
    if template is not None and template.count("{}") != 1:
        raise InputError(f"template {template!r}: write it with one {{}} where the class name goes")
    images, unlabelled = encode_inputs(X, backbone, progress=progress), None
    count = len(images.global_)
    series = None if groups is None else read_groups(groups, count)
    weights = read_sample_weight(sample_weight, count)
    bare = unlabelled_rows(y)
    if len(bare) == count and bare.any():
        unlabelled = images.global_[bare]
        images = Encoded(*(part[~bare] for part in images))
        y = [label for label, left in zip(y, bare, strict=True) if not left]
        series = None if series is None else series[~bare]
        weights = None if weights is None else weights[~bare]
    if not images.global_.any():
        raise InputError("X holds nothing but zeros: give the images' features")
    given = read_labels(y, len(images.global_))
    rows = np.arange(len(given)) if weights is None else np.flatnonzero(weights)
    labels = np.unique(read_labels(given[rows], len(rows)))
    train = _items(0, given, labels, rows)
    if series is not None:
        train = tuple(replace(item, group=series[int(item.path)]) for item in train)
    held_out: tuple[Item, ...] = ()
    if eval_set is not None:
        others, theirs = _read_eval_set(eval_set, backbone, labels, progress)
        held_out = _items(len(given), theirs, labels, np.arange(len(theirs)))
        if images.patches.shape[1:] != others.patches.shape[1:]:
            raise InputError(
                "eval_set has other patches than X: give both as images, or both as such features"
            )
        pairs = zip(images, others, strict=True)
        images = Encoded(*(torch.cat([mine, theirs.to(mine)]) for mine, theirs in pairs))
    names = names_of(labels.tolist(), class_names)
    template = template or DEFAULT_TEMPLATE
    dataset = Dataset("own images", Path(), names, train, held_out, template=template)
    by_path = None if weights is None else {item.path: float(weights[int(item.path)]) for item in train}
    return Training(dataset, GivenFeatures(backbone, images), labels, by_path, unlabelled)


def _items(start: int, given: NDArray[Any], labels: NDArray[Any], rows: NDArray[np.intp]) -> tuple[Item, ...]:
    classes = np.searchsorted(labels, given[rows])
    return tuple(
        Item(str(start + row), label) for row, label in zip(rows.tolist(), classes.tolist(), strict=True)
    )


def _read_eval_set(
    eval_set: Any, backbone: Backbone, labels: NDArray[Any], progress: bool
) -> tuple[Encoded, NDArray[Any]]:
    if not isinstance(eval_set, tuple) or len(eval_set) != 2:
        raise InputError("eval_set is no pair: give (X, y) of the validation images")
    images = encode_inputs(eval_set[0], backbone, progress=progress)
    given = read_labels(eval_set[1], len(images.global_), fewest=1)
    if given.dtype.kind != labels.dtype.kind or len(strange := np.setdiff1d(given, labels)):
        first = (given if given.dtype.kind != labels.dtype.kind else strange).tolist()[0]
        raise InputError(f"eval_set has the label {first!r}, which y has not: give images of y's classes")
    return images, given


def item_weights(
    items: Sequence[Item],
    labels: Sequence[Any],
    class_weight: ClassWeight,
    sample_weight: Mapping[str, float] | None,
) -> dict[str, float] | None:
    """The weight of each item by its path; `labels` are those of the classes. None: all count alike."""
    if class_weight is None and sample_weight is None:
        return None
    counts = Counter(item.label for item in items)
    of_class = _of_classes(class_weight, labels, counts)
    own = sample_weight or {}
    return {item.path: own.get(item.path, 1.0) * of_class[item.label] for item in items}


def _of_classes(class_weight: ClassWeight, labels: Sequence[Any], counts: Mapping[int, int]) -> list[float]:
    """`balanced`: n / (K n_c), so that all classes count alike; those that a dict leaves out count once."""
    if class_weight is None:
        return [1.0] * len(labels)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(f"class_weight is {class_weight!r}: give 'balanced', {{label: weight}} or None")
        images = sum(counts.values())
        return [images / (len(counts) * max(1, counts.get(row, 0))) for row in range(len(labels))]
    if unknown := [label for label in class_weight if label not in labels]:
        first = unknown[0].item() if isinstance(unknown[0], np.generic) else unknown[0]
        raise InputError(f"class_weight has a weight for {first!r}, which is no class of y")
    weights = [float(class_weight.get(label, 1.0)) for label in labels]
    if not all(0 < weight < np.inf for weight in weights):
        raise InputError("class_weight holds a weight that is not above 0: leave the class out of y instead")
    return weights


def method_config(method: str, preset: str, variant: str, settings: Mapping[str, Any] | None) -> MethodConfig:
    """The method's settings: preset, then variant, then those given."""
    kind = find_method(method)
    chosen = {
        key: value.item() if isinstance(value, np.generic) else value  # as the grid of a search may have it
        for key, value in (settings or {}).items()
    }
    if isinstance(texts := chosen.get("descriptions"), Mapping):
        chosen["descriptions"] = described(list(texts), texts, "descriptions")
    return from_dict(kind.Config, to_dict(make_config(kind, preset, variant)) | chosen)


@lru_cache(maxsize=1)
def shared_backbone(given: tuple[str | Backbone, ...], activation: str | None, device: str) -> Backbone:
    """Towers never change, so the many classifiers of a search share them."""
    return load_backbone(given, activation=activation, device=device)
