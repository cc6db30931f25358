"""timm's towers: alone in timm's folders, or as the image tower of open_clip's models such as MobileCLIP."""

import math
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Interpolation
from pbprompt.vision.towers.backbone import BackboneConfig, Images
from pbprompt.vision.towers.loading.checkpoint_files import (
    HF_CONFIG,
    IMAGENET_MEAN,
    IMAGENET_STD,
    read_json,
    triple,
)
from pbprompt.vision.towers.loading.formats import read_tensors
from pbprompt.vision.towers.timm_tower import TimmConfig, TimmTower, looked_at, make_trunk

POOLS = ("avg", "token")  # of such trunks
CROP = 0.875  # the share of an image that timm crops where its config does not say


def read_timm(path: Path, name: str) -> tuple[BackboneConfig, dict[str, Tensor], nn.Module]:
    """The config, the tower's tensors under `visual.`, and the tower that has them."""
    config_path = path.parent / HF_CONFIG
    declared = read_json(config_path)
    about = declared.get("pretrained_cfg") or {}
    size, images = _images(config_path, about)
    arguments = tuple(sorted((declared.get("model_args") or {}).items()))
    vision = TimmConfig(declared["architecture"], size, arguments=arguments)
    trunk = make_trunk(vision, str(config_path))
    named = about.get("classifier") or ()
    heads = tuple(f"{head}." for head in ([named] if isinstance(named, str) else named))
    state = {key: value for key, value in read_tensors(path)[0].items() if not key.startswith(heads)}
    _fill(path, vision, trunk, state)
    vision, width = looked_at(str(config_path), vision, trunk)
    config = BackboneConfig(name, width, vision, None, "own", images)
    tower = TimmTower(vision, trunk)
    return config, {f"visual.{key}": value for key, value in tower.state_dict().items()}, tower


def _images(path: Path, about: dict[str, Any]) -> tuple[int, Images]:
    """The side of images and how they are prepared, as timm's own evaluation has it."""
    mean = triple(path, about, "mean", IMAGENET_MEAN)
    std = triple(path, about, "std", IMAGENET_STD)
    shape = about.get("input_size") or [3, 224, 224]
    size = shape[-1] if isinstance(shape, list) and shape else None
    if type(size) is not int or size < 1 or shape != [3, size, size]:
        raise InputError(f"{path}: input_size is {shape!r}; [3, SIZE, SIZE] is needed")
    interpolation: Any = about.get("interpolation") or "bicubic"
    if interpolation not in (known := get_args(Interpolation)):
        raise InputError(f"{path}: interpolation is {interpolation!r}; known are {', '.join(known)}")
    share, mode = about.get("crop_pct") or CROP, about.get("crop_mode") or "center"
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{path}: crop_pct is {share!r}; a share of the image, up to 1, is needed")
    resize = math.floor(size / share)
    if mode == "squash" and resize == size:
        return size, Images(mean, std, "squash", interpolation)
    if mode != "center":
        raise InputError(f"{path}: crop_mode is {mode!r} with crop_pct {share}; only 'center' is supported")
    return size, Images(mean, std, "crop", interpolation, None if resize == size else resize)


def _fill(path: Path, vision: TimmConfig, trunk: nn.Module, state: dict[str, Tensor]) -> None:
    """Give the trunk its weights: all of them, and no others."""
    own = trunk.state_dict()
    counters = {key for key in own if key.endswith("num_batches_tracked")}  # of training alone
    wrong = sorted(own.keys() - state.keys() - counters) or sorted(state.keys() - own.keys())
    wrong = wrong or sorted(key for key in state if state[key].shape != own[key].shape)
    if wrong:
        raise InputError(
            f"{path}: its tensors are not those of timm's {vision.architecture!r} ({wrong[0]} is missing, "
            "unknown or of another shape); fetch the checkpoint again, or update timm"
        )
    trunk.load_state_dict(state, strict=False)


def trunk_config(path: Path, vision: dict[str, Any], width: Any) -> TimmConfig:
    """What timm is asked for by open_clip's config, in its section of the image tower."""
    pool, projection = vision.get("timm_pool"), vision.get("timm_proj")
    if projection or pool not in POOLS:
        raise InputError(
            f"{path}: timm_pool is {pool!r} and timm_proj {projection!r}; "
            f"of timm's towers, EVA-02's B and L, PE-Core's and those with timm_pool {' or '.join(POOLS)} "
            "and no timm_proj are supported"
        )
    name, size = vision.get("timm_model_name"), vision.get("image_size", 224)
    if not isinstance(name, str) or type(size) is not int or type(width) is not int or min(size, width) < 1:
        raise InputError(
            f"{path}: timm_model_name is {name!r}, image_size {size!r} and embed_dim {width!r}; "
            "give the config that came with the weights"
        )
    return TimmConfig(name, size, width, pool)
