"""The backbones that come with the package: read, and checked to be whole."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources.abc import Traversable
from typing import Any

from safetensors.torch import load
from torch import Tensor

from pbprompt.errors import BrokenInstallError
from pbprompt.vision.towers import ASSETS
from pbprompt.vision.towers.backbone import BackboneConfig, Images
from pbprompt.vision.towers.lite import LiteBlockConfig, LiteConfig, LiteVitConfig
from pbprompt.vision.towers.text import TextConfig

TRUNK = ("visual.stem.", "visual.blocks.", "visual.top.")  # of lite, which lite-vit shares


def read_embedded(name: str, folder: Traversable | None = None) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """An embedded model's config and its tensors in OpenAI's layout; checksums are verified on the way."""
    folder = folder or ASSETS
    lite, state = _read_whole(folder / "lite", _lite_config)
    if name == "lite":
        return lite, state
    config, own = _read_whole(folder / "lite-vit", lambda declared: _lite_vit_config(declared, lite))
    own["conv1.weight"] = own.pop("stem.weight")[:, :, None, None]  # its patches are the map's positions
    text = {key: value for key, value in state.items() if not key.startswith("visual.")}
    trunk = {
        key.replace("visual.", "visual.trunk."): value
        for key, value in state.items()
        if key.startswith(TRUNK)
    }
    return config, text | trunk | {f"visual.{key}": value for key, value in own.items()}


def _read_whole(
    folder: Traversable, describe: Callable[[dict[str, Any]], BackboneConfig]
) -> tuple[BackboneConfig, dict[str, Tensor]]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
        content = (folder / "model.safetensors").read_bytes()
        intact = hashlib.sha256(content).hexdigest() == config["sha256"]
        described = describe(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenInstallError(f"{folder}: unreadable ({error!r}); install pbprompt again") from None
    if not intact:
        raise BrokenInstallError(
            f"{folder}: model.safetensors has the wrong checksum; install pbprompt again"
        )
    return described, load(content)


def _lite_config(config: dict[str, Any]) -> BackboneConfig:
    vision, text = config["vision"], config["text"]
    return BackboneConfig(
        name=config["name"],
        embed_dim=config["embed_dim"],
        vision=LiteConfig(
            image_size=vision["image_size"],
            stem_channels=vision["stem"]["channels"],
            blocks=tuple(LiteBlockConfig(**block) for block in vision["blocks"]),
            top=vision["top"],
            head_hidden=vision["head_hidden"],
        ),
        text=TextConfig(**{key: text[key] for key in TextConfig.__dataclass_fields__ if key in text}),
        activation=text["activation"],
        images=Images(tuple(vision["mean"]), tuple(vision["std"])),
    )


def _lite_vit_config(config: dict[str, Any], lite: BackboneConfig) -> BackboneConfig:
    """Text tower, preprocessing and trunk are those of lite."""
    assert isinstance(lite.vision, LiteConfig)
    vision, size = config["vision"], lite.vision.image_size
    patch = size // lite.vision.grid[0]
    sizes = LiteVitConfig(size, patch, vision["width"], vision["layers"], vision["heads"], trunk=lite.vision)
    return replace(lite, name=config["name"], vision=sizes, activation=vision["activation"])
