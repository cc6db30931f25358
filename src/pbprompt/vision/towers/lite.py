"""The backbones that come with the package: their image towers, and their files, checked to be whole.

An EfficientNet-Lite trunk is under a position-wise head (`lite`) or under a vision transformer (`lite-vit`).
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load
from torch import Tensor, nn

from pbprompt.errors import BrokenInstallError
from pbprompt.vision.towers import ASSETS
from pbprompt.vision.towers.backbone import BackboneConfig, Images
from pbprompt.vision.towers.layers import PatchConfig, Seen
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VisionTransformer


@dataclass(frozen=True)
class LiteBlockConfig:
    """One inverted-residual block."""

    kernel: int
    stride: int
    expand: int
    channels_in: int
    channels_out: int
    residual: bool


@dataclass(frozen=True)
class LiteConfig:
    """Sizes of the trunk and its head."""

    image_size: int
    stem_channels: int
    blocks: tuple[LiteBlockConfig, ...]
    top: int
    head_hidden: int

    @property
    def grid(self) -> tuple[int, int]:
        side = self.image_size
        for stride in (2, *(block.stride for block in self.blocks)):
            side = -(-side // stride)
        return side, side

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return LiteTower(self, embed_dim)


@dataclass(frozen=True)
class LiteVitConfig(PatchConfig):
    """Sizes of the trunk, and of the transformer whose patches are the positions of the trunk's map."""

    trunk: LiteConfig = field(kw_only=True)

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return LiteVitTower(self, embed_dim, activation)


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: the odd pixel goes right and bottom."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k i j"]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, across = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (x.shape[2], x.shape[3]))
        padding = (down // 2, across // 2)
        if down % 2 or across % 2:  # else the convolution pads by itself, without a copy
            x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
            padding = (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class InvertedResidual(nn.Module):
    """1×1 expand, depthwise k×k, 1×1 project; ReLU6 after the first two, in place to spare memory traffic."""

    def __init__(self, config: LiteBlockConfig) -> None:
        super().__init__()
        inner = config.channels_in * config.expand
        self.residual = config.residual
        self.expand = SameConv2d(config.channels_in, inner, 1) if config.expand > 1 else None
        self.depthwise = SameConv2d(inner, inner, config.kernel, stride=config.stride, groups=inner)
        self.project = SameConv2d(inner, config.channels_out, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k i j"]:
        out = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out = self.project(F.relu6(self.depthwise(out), inplace=True))
        return x + out if self.residual else out


class LiteHead(nn.Module):
    """skip(x) + fc2(relu(fc1(x))) at every position."""

    def __init__(self, width: int, hidden: int, embed_dim: int) -> None:
        super().__init__()
        self.skip = nn.Linear(width, embed_dim, bias=False)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, embed_dim)

    def forward(self, x: Float[Tensor, "b m k"]) -> Float[Tensor, "b m d"]:
        return self.skip(x) + self.fc2(F.relu(self.fc1(x)))


class LiteTrunk(nn.Module):
    """Image -> a map of 7×7 positions."""

    def __init__(self, config: LiteConfig) -> None:
        super().__init__()
        self.stem = SameConv2d(3, config.stem_channels, 3, stride=2)
        self.blocks = nn.ModuleList(InvertedResidual(block) for block in config.blocks)
        self.top = SameConv2d(config.blocks[-1].channels_out, config.top, 1)

    def features(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b k i j"]:
        x = F.relu6(self.stem(x.contiguous(memory_format=torch.channels_last)), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.top(x), inplace=True)


class LiteTower(LiteTrunk):
    """Image -> 7×7 positions in the joint space; the image feature is their plain mean."""

    def __init__(self, config: LiteConfig, embed_dim: int) -> None:
        super().__init__(config)
        self.head = LiteHead(config.top, config.head_hidden, embed_dim)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Seen:
        return self.read(self.features(x))

    def read(self, trunk_map: Float[Tensor, "b k i j"]) -> Seen:
        patches = self.head(trunk_map.flatten(2).transpose(1, 2))
        return patches.mean(dim=1), patches

    @property
    def trunk(self) -> LiteTrunk:
        return self


class LiteVitTower(VisionTransformer):
    """CLIP's vision transformer, which looks at the trunk's map in place of the pixels."""

    def __init__(self, config: LiteVitConfig, embed_dim: int, activation: str) -> None:
        super().__init__(config, embed_dim, activation)
        self.conv1 = nn.Conv2d(config.trunk.top, config.width, 1, bias=False)
        self.trunk = LiteTrunk(config.trunk)

    def enter(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        return super().enter(self.trunk.features(x))

    def read(self, trunk_map: Float[Tensor, "b k i j"]) -> Seen:
        return self.leave(self.through(super().enter(trunk_map)))


def same_trunk(one: LiteTrunk, other: LiteTrunk) -> bool:
    """Whether they make the same map of an image."""
    names = [name for name, _ in one.named_buffers() if not name.startswith("head.")]
    return all(torch.equal(one.get_buffer(name), other.get_buffer(name)) for name in names)


def read_embedded(name: str, folder: Traversable | None = None) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """An embedded model's config and its tensors in OpenAI's layout; checksums are verified on the way."""
    folder = folder or ASSETS
    with _whole(folder / "lite"):
        declared, state = _read_whole(folder / "lite")
        trunk, config = _lite_config(declared)
    if name == "lite":
        return config, state
    # lite-vit: text tower, preprocessing and trunk are those of lite
    with _whole(folder / "lite-vit"):
        declared, own = _read_whole(folder / "lite-vit")
        vision, size = declared["vision"], trunk.image_size
        patch = size // trunk.grid[0]
        sizes = LiteVitConfig(size, patch, vision["width"], vision["layers"], vision["heads"], trunk=trunk)
        config = replace(config, name=declared["name"], vision=sizes, activation=vision["activation"])
    shared = {key: value for key, value in state.items() if not key.startswith("visual.head.")}
    own["conv1.weight"] = own.pop("stem.weight")[:, :, None, None]  # its patches are the map's positions
    return config, {
        **{key.replace("visual.", "visual.trunk."): value for key, value in shared.items()},
        **{f"visual.{key}": value for key, value in own.items()},
    }


@contextmanager
def _whole(folder: Traversable) -> Iterator[None]:
    """While an embedded model is read: what its files lack is the installation's fault."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenInstallError(f"{folder}: unreadable ({error!r}); install pbprompt again") from None


def _read_whole(folder: Traversable) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_bytes())
    content = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != config["sha256"]:
        raise BrokenInstallError(
            f"{folder}: model.safetensors has the wrong checksum; install pbprompt again"
        )
    return config, load(content)


def _lite_config(config: dict[str, Any]) -> tuple[LiteConfig, BackboneConfig]:
    vision, text = config["vision"], config["text"]
    sizes = LiteConfig(
        image_size=vision["image_size"],
        stem_channels=vision["stem"]["channels"],
        blocks=tuple(LiteBlockConfig(**block) for block in vision["blocks"]),
        top=vision["top"],
        head_hidden=vision["head_hidden"],
    )
    words = TextConfig(**{key: text[key] for key in TextConfig.__dataclass_fields__ if key in text})
    images = Images(tuple(vision["mean"]), tuple(vision["std"]))
    return sizes, BackboneConfig(
        config["name"], config["embed_dim"], sizes, words, text["activation"], images
    )
