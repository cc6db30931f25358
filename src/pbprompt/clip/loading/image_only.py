"""Which weights are those of an image tower without text, by the config beside them."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.loading.dino import PUBLISHED, read_dino
from pbprompt.clip.loading.json_files import HF_CONFIG, read_json
from pbprompt.clip.loading.timm_folder import is_timm, read_timm
from pbprompt.errors import InputError

Reader = Callable[[Path, str], tuple[BackboneConfig, dict[str, Tensor], nn.Module | None]]
HF_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json")
OTHERS = (
    "beit",
    "convnext",
    "convnextv2",
    "deit",
    "dinov3_convnext",
    "resnet",
    "swin",
    "swinv2",
    "vit",
    "vit_mae",
)


def image_only_reader(path: Path) -> Reader | None:
    """What reads the weights, where they are an image tower's alone: it gives the config, the tensors and,
    where another library built it, the tower."""
    beside = path.parent / HF_CONFIG
    if path.name not in HF_WEIGHTS or not beside.is_file():
        return None
    config = read_json(beside)
    if is_timm(config):
        return read_timm
    kind = config.get("model_type")
    if kind in PUBLISHED:
        return read_dino
    if kind in OTHERS:
        raise InputError(
            f"{beside}: model_type is {kind!r}; of image towers without text DINOv2 and DINOv3 "
            f"({', '.join(PUBLISHED)}) and timm's models (timm/NAME) are supported"
        )
    return None
