"""The backbone that comes with the package: read, and checked to be whole."""

import hashlib
import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from safetensors.torch import load
from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.lite import LiteBlockConfig, LiteConfig
from pbprompt.clip.text import TextConfig
from pbprompt.errors import BrokenInstallError


def lite_folder() -> Traversable:
    return files("pbprompt.clip") / "assets" / "lite"


def read_lite(folder: Traversable | None = None) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """The embedded model's config and its tensors in OpenAI's layout; its checksum is verified on the way."""
    folder = folder or lite_folder()
    try:
        config = json.loads((folder / "config.json").read_bytes())
        content = (folder / "model.safetensors").read_bytes()
        intact = hashlib.sha256(content).hexdigest() == config["sha256"]
        described = _config(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenInstallError(f"{folder}: unreadable ({error!r}); install pbprompt again") from None
    if not intact:
        raise BrokenInstallError(
            f"{folder}: model.safetensors has the wrong checksum; install pbprompt again"
        )
    return described, load(content)


def _config(config: dict[str, Any]) -> BackboneConfig:
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
        mean=tuple(vision["mean"]),
        std=tuple(vision["std"]),
    )
