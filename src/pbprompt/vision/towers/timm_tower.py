"""Image towers that timm builds: any of its models by name, alone or as the image tower of MobileCLIP.

    features = trunk.forward_features(x)            a map or tokens
    image:   trunk.forward_head(features)           pooled, and projected where the trunk has a head
    patches: head(features at each position)        ours: timm defines none

Where the image is the mean over a map (the convolutional towers of MobileCLIP), the mean of the patches is
the image's own vector, since the head is linear. Where positions have another width than the image (a layer
lies between them), the image's vector is its only patch.
"""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError, first_line, install_command

Positions = Literal["tokens", "map", "map, channels last", "none"]


@dataclass(frozen=True)
class TimmConfig:
    """What timm is asked for. `outputs`: width of the head, 0 for none; `side`: of the grid of positions."""

    architecture: str
    image_size: int
    outputs: int = 0
    pool: str | None = None
    arguments: tuple[tuple[str, Any], ...] = ()
    positions: Positions = "none"
    side: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        return self.side, self.side

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return TimmTower(self)


class TimmTower(nn.Module):
    """Image -> one vector and one vector a position."""

    def __init__(self, config: TimmConfig, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.trunk: Any = trunk if trunk is not None else make_trunk(config)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b m d"]]:
        features = self.trunk.forward_features(x)
        image = self.trunk.forward_head(features)
        if self.config.positions == "none":
            return image, image.unsqueeze(1)
        return image, self.trunk.get_classifier()(_rows(self.trunk, features, self.config.positions))


def make_trunk(config: TimmConfig, source: str = "timm's towers") -> Any:
    """timm's model in eval mode, with random weights and with values, also where others are laid out without:
    some of its tables are no weights and are made with it."""
    timm = import_timm(source)
    options = dict(config.arguments) | ({"global_pool": config.pool} if config.pool else {})
    with torch.device("cpu"):
        try:
            trunk = timm.create_model(
                config.architecture, pretrained=False, num_classes=config.outputs, **options
            )
        except Exception as error:  # its models have errors of many kinds
            version = getattr(timm, "__version__", "here")
            raise InputError(
                f"{source}: timm {version} cannot build {config.architecture!r} ({first_line(error)}): "
                "check the name, or update timm"
            ) from None
    return trunk.eval()


def import_timm(source: str) -> ModuleType:
    """The library, or what to do to have it."""
    try:
        import timm
    except Exception as error:  # a torchvision of another torch raises other errors than ImportError
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            raise InputError(f"{source}: needs timm; run {install_command('timm')}") from None
        raise InputError(
            f"{source}: needs timm, which is installed but cannot be imported ({first_line(error)}): "
            "install a torchvision that belongs to this torch"
        ) from None
    return timm


@torch.no_grad()
def looked_at(source: str, config: TimmConfig, trunk: Any) -> tuple[TimmConfig, int]:
    """The config with where the trunk has positions, and the width of its vector: by a look at no image."""
    size = config.image_size
    try:
        features = trunk.forward_features(torch.zeros(1, 3, size, size))
        image = trunk.forward_head(features)
    except Exception as error:
        raise InputError(
            f"{source}: {config.architecture!r} takes no images of {size} pixels ({first_line(error)}); "
            "give the config that came with the weights"
        ) from None
    if image.ndim != 2:
        raise InputError(
            f"{source}: {config.architecture!r} gives {list(image.shape[1:])} numbers, no single vector; "
            "give a model that pools"
        )
    width, head = image.shape[1], trunk.get_classifier()
    for positions in get_args(Positions)[:-1]:
        rows = _rows(trunk, features, positions)
        if rows is None or not isinstance(head, nn.Module):
            continue
        side = math.isqrt(rows.shape[1])
        entry = head.in_features if isinstance(head, nn.Linear) else width
        if side * side == rows.shape[1] and rows.shape[2] == entry:
            return replace(config, positions=positions, side=side), width
    return config, width


def _rows(trunk: Any, features: Tensor, positions: str) -> Any:
    """[b, m, c], or None where the features are of another kind."""
    if positions == "tokens" and features.ndim == 3:
        return features[:, getattr(trunk, "num_prefix_tokens", 0) :]
    if positions == "map" and features.ndim == 4:
        return features.flatten(2).transpose(1, 2)
    if positions == "map, channels last" and features.ndim == 4:
        return features.flatten(1, 2)
    return None
