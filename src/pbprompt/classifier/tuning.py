"""From a classifier's parameters and its images to what `TunedModel.fit` takes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.clip.loading.load import load_backbone
from pbprompt.config import from_dict, to_dict
from pbprompt.data.items import DEFAULT_TEMPLATE, Dataset, Item
from pbprompt.errors import InputError
from pbprompt.features.bank import Features
from pbprompt.methods.base import MethodConfig, make_config
from pbprompt.registry import find_method


class GivenFeatures:
    """A bank of images that are encoded already; an item's path is its image's place."""

    def __init__(self, backbone: Backbone, images: Encoded) -> None:
        self.backbone, self.images = backbone, images

    def encode(self, root: Path, items: Sequence[Item]) -> Features:
        rows = [int(item.path) for item in items]
        labels = torch.tensor([item.label for item in items])
        return Features(self.images.global_[rows], self.images.patches[rows], labels)


def given_dataset(names: Sequence[str], rows: Sequence[int], template: str | None) -> Dataset:
    """Images of the classes `rows` as a dataset whose features `GivenFeatures` has."""
    if template is not None and template.count("{}") != 1:
        raise InputError(f"template {template!r}: write it with one {{}} where the class name goes")
    items = tuple(Item(str(place), label) for place, label in enumerate(rows))
    return Dataset("own images", Path(), tuple(names), items, template=template or DEFAULT_TEMPLATE)


def method_config(method: str, preset: str, variant: str, settings: Mapping[str, Any] | None) -> MethodConfig:
    """The method's settings: preset, then variant, then those given."""
    kind = find_method(method)
    chosen = {
        key: value.item() if isinstance(value, np.generic) else value  # as the grid of a search may have it
        for key, value in (settings or {}).items()
    }
    return from_dict(kind.Config, to_dict(make_config(kind, preset, variant)) | chosen)


@lru_cache(maxsize=1)
def shared_backbone(name: str, activation: str | None, device: str) -> Backbone:
    """Towers never change, so the many classifiers of a search share them."""
    return load_backbone(name, activation=activation, device=device)
