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
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError, first_line, install_command
from pbprompt.vision.images.crops import Interpolation
from pbprompt.vision.images.transforms import Triple
from pbprompt.vision.towers.backbone import BackboneConfig, Images
from pbprompt.vision.towers.layers import Seen
from pbprompt.vision.towers.loading.config import one_of, triple
from pbprompt.vision.towers.loading.conversion import State, TensorError, of_file
from pbprompt.vision.towers.loading.files import HF_CONFIG, read_json, read_tensors

Positions = Literal["tokens", "map", "map, channels last", "none"]
POOLS = ("avg", "token")  # of open_clip's towers
CROP = 0.875  # the share of an image that timm crops where its config does not say
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class TimmConfig:
    """What timm is to build. `outputs`: width of the head, 0 for none; `side`: of the grid of positions.

    What is printed of it is part of a fingerprint.
    """

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

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Seen:
        features = self.trunk.forward_features(x)
        image = self.trunk.forward_head(features)
        if self.config.positions == "none":
            return image, image.unsqueeze(1)
        return image, self.trunk.get_classifier()(_rows(self.trunk, features, self.config.positions))


def make_trunk(config: TimmConfig) -> Any:
    """timm's model in eval mode, with random weights and with values, also where others are laid out without:
    some of its tables are no weights and are made with it."""
    timm = _import_timm()
    options = dict(config.arguments) | ({"global_pool": config.pool} if config.pool else {})
    with torch.device("cpu"):
        try:
            trunk = timm.create_model(
                config.architecture, pretrained=False, num_classes=config.outputs, **options
            )
        except Exception as error:  # its models have errors of many kinds
            version = getattr(timm, "__version__", "here")
            raise TensorError(
                f"timm {version} cannot build {config.architecture!r} ({first_line(error)}): "
                "check the name, or update timm"
            ) from None
    return trunk.eval()


def _import_timm() -> ModuleType:
    try:
        import timm
    except Exception as error:  # a torchvision of another torch raises other errors than ImportError
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            raise TensorError(f"needs timm; run {install_command('timm')}") from None
        raise TensorError(
            f"needs timm, which is installed but cannot be imported ({first_line(error)}): "
            "install a torchvision that belongs to this torch"
        ) from None
    return timm


@torch.no_grad()
def with_positions(config: TimmConfig, trunk: Any) -> tuple[TimmConfig, int]:
    """The config with where the trunk has positions, and the width of its vector: by a look at no image."""
    size = config.image_size
    try:
        features = trunk.forward_features(torch.zeros(1, 3, size, size))
        image = trunk.forward_head(features)
    except Exception as error:
        raise TensorError(
            f"{config.architecture!r} takes no images of {size} pixels ({first_line(error)}); "
            "give the config that came with the weights"
        ) from None
    if image.ndim != 2:
        numbers = list(image.shape[1:])
        raise TensorError(
            f"{config.architecture!r} gives {numbers} numbers, no single vector; give a model that pools"
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


def read_timm(path: Path, name: str) -> tuple[BackboneConfig, State, nn.Module]:
    """The config, the tower's tensors under `visual.`, and the tower that has them."""
    config_path = path.parent / HF_CONFIG
    declared = read_json(config_path)
    about = declared.get("pretrained_cfg") or {}
    size, images = _images(config_path, about)
    arguments = tuple(sorted((declared.get("model_args") or {}).items()))
    vision = TimmConfig(declared["architecture"], size, arguments=arguments)
    with of_file(config_path):
        trunk = make_trunk(vision)
    named = about.get("classifier") or ()
    heads = tuple(f"{head}." for head in ([named] if isinstance(named, str) else named))
    _fill(vision, trunk, {key: v for key, v in read_tensors(path)[0].items() if not key.startswith(heads)})
    with of_file(config_path):
        vision, width = with_positions(vision, trunk)
    config = BackboneConfig(name, width, vision, None, "own", images)
    tower = TimmTower(vision, trunk)
    return config, {f"visual.{key}": value for key, value in tower.state_dict().items()}, tower


def _images(path: Path, about: dict[str, Any]) -> tuple[int, Images]:
    """The side of images and how they are prepared, as timm's own evaluation has it."""
    shape = about.get("input_size") or [3, 224, 224]
    size = shape[-1] if isinstance(shape, list) and shape else None
    if type(size) is not int or size < 1 or shape != [3, size, size]:
        raise InputError(f"{path}: input_size is {shape!r}; [3, SIZE, SIZE] is needed")
    share, mode = about.get("crop_pct") or CROP, about.get("crop_mode") or "center"
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{path}: crop_pct is {share!r}; a share of the image, up to 1, is needed")
    resize = math.floor(size / share)
    squash = mode == "squash" and resize == size
    if not squash and mode != "center":
        raise InputError(f"{path}: crop_mode is {mode!r} with crop_pct {share}; only 'center' is supported")
    return size, Images(
        triple(path, about, "mean", IMAGENET_MEAN),
        triple(path, about, "std", IMAGENET_STD),
        "squash" if squash else "crop",
        one_of(path, about, "interpolation", get_args(Interpolation), "bicubic"),
        None if resize == size else resize,
    )


def _fill(vision: TimmConfig, trunk: nn.Module, state: State) -> None:
    """Give the trunk its weights: all of them, and no others."""
    own = trunk.state_dict()
    counters = {key for key in own if key.endswith("num_batches_tracked")}  # of training alone
    wrong = sorted(own.keys() - state.keys() - counters) or sorted(state.keys() - own.keys())
    wrong = wrong or sorted(key for key in state if state[key].shape != own[key].shape)
    if wrong:
        raise TensorError(
            f"its tensors are not those of timm's {vision.architecture!r} ({wrong[0]} is missing, "
            "unknown or of another shape); fetch the checkpoint again, or update timm"
        )
    trunk.load_state_dict(state, strict=False)


def open_clip_trunk(vision: dict[str, Any], width: int) -> tuple[TimmConfig, int]:
    """What open_clip's config has timm build, in its section of the image tower, and its vector's width."""
    pool, projection = vision.get("timm_pool"), vision.get("timm_proj")
    if projection or pool not in POOLS:
        raise TensorError(
            f"timm_pool is {pool!r} and timm_proj {projection!r}; "
            f"of timm's towers, EVA-02's B and L, PE-Core's and those with timm_pool {' or '.join(POOLS)} "
            "and no timm_proj are supported"
        )
    name, size = vision.get("timm_model_name"), vision.get("image_size", 224)
    if not isinstance(name, str) or type(size) is not int or size < 1:
        raise TensorError(
            f"timm_model_name is {name!r} and image_size {size!r}; give the config that came with the weights"
        )
    config = TimmConfig(name, size, width, pool)
    return with_positions(config, make_trunk(config))


def _rows(trunk: Any, features: Tensor, positions: str) -> Any:
    """[b, m, c], or None where the features are of another kind."""
    if positions == "tokens" and features.ndim == 3:
        return features[:, getattr(trunk, "num_prefix_tokens", 0) :]
    if positions == "map" and features.ndim == 4:
        return features.flatten(2).transpose(1, 2)
    if positions == "map, channels last" and features.ndim == 4:
        return features.flatten(1, 2)
    return None
