"""How much each training image counts: `sample_weight` times the weight of its class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbprompt.data.items import Item
from pbprompt.errors import InputError

ClassWeight = Mapping[Any, float] | str | None


def read_sample_weight(given: Any, images: int) -> NDArray[np.float64] | None:
    """One weight for each image, 0 or more."""
    if given is None:
        return None
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight holds no numbers: give one for each image") from None
    if weights.ndim == 0:  # scikit-learn's callers may give one for all
        weights = np.full(images, float(weights))
    if weights.shape != (images,):
        raise InputError(
            f"sample_weight has the shape {weights.shape}: give one weight for each of the {images} images"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError("sample_weight holds a negative number, NaN or infinity: give weights of 0 or more")
    if not weights.any():
        raise InputError("sample_weight is 0 for every image: give some of them weight")
    return weights


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
