"""open_clip's models with timm's image tower and CLIP's text tower, such as MobileCLIP and MobileCLIP2."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from pbprompt.clip.loading.checkpoint_config import Told, read_open_clip
from pbprompt.clip.loading.json_files import OPEN_CLIP_CONFIG, read_json
from pbprompt.clip.timm_tower import TimmConfig, looked_at, make_trunk
from pbprompt.errors import InputError

TRUNK = "visual.trunk."
POOLS = ("avg", "token")


def is_trunk(state: dict[str, Tensor]) -> bool:
    return any(key.startswith(TRUNK) for key in state)


def read_trunk_config(path: Path) -> Told:
    """open_clip's config beside the weights, without which nobody knows what timm should build."""
    config = path.parent / OPEN_CLIP_CONFIG
    if not config.is_file():
        raise InputError(
            f"{path}: its image tower is timm's, whose name is in {OPEN_CLIP_CONFIG}; give the model's folder"
        )
    told = read_open_clip(config, trunk=True)
    vision = read_json(config)["model_cfg"]["vision_cfg"]
    if vision.get("timm_proj") or vision.get("timm_pool") not in POOLS:
        raise InputError(
            f"{config}: timm_pool is {vision.get('timm_pool')!r} and timm_proj {vision.get('timm_proj')!r}; "
            f"of timm's towers, EVA-02's B and L, PE-Core's and those with timm_pool {' or '.join(POOLS)} "
            "and no timm_proj are supported"
        )
    name, size, width = (
        vision.get("timm_model_name"),
        told.sizes.get("vision.image_size", 224),
        told.sizes.get("embed_dim"),
    )
    if not isinstance(name, str) or type(size) is not int or type(width) is not int or min(size, width) < 1:
        raise InputError(
            f"{config}: timm_model_name is {name!r}, image_size {size!r} and embed_dim {width!r}; "
            "give the config that came with the weights"
        )
    return replace(told, family="trunk", trunk=TimmConfig(name, size, width, vision["timm_pool"]))


def trunk_vision(source: str, state: dict[str, Tensor], told: Told) -> TimmConfig:
    """What timm is asked for, with the grid that the tower turns out to have."""
    assert told.trunk is not None
    return looked_at(source, told.trunk, make_trunk(told.trunk, source))[0]
