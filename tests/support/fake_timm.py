"""A module with as much of timm's interface as is used: small towers of each kind of features.

Real timm needs torchvision, which belongs to one version of torch; the suite has neither.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pbprompt.vision.towers.text import TextConfig, TextTower

WIDTH = 24


class Trunk(nn.Module):
    """Features, a pool and a linear head, as timm's models are taken apart."""

    def __init__(self, num_classes: int, hidden: int = WIDTH) -> None:
        super().__init__()
        self.num_features = WIDTH
        self.head = nn.Linear(hidden, num_classes) if num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class Convolutional(Trunk):
    """A map [b, c, h, w] with a batch norm, averaged."""

    def __init__(self, num_classes: int = 1000, global_pool: str = "avg") -> None:
        super().__init__(num_classes)
        assert global_pool == "avg"
        self.stem = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.norm(self.stem(x)).relu()

    def forward_head(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))


class Transformer(Trunk):
    """Tokens [b, 1 + m, c] at a fixed size, with a table that is no weight; the first token is the image."""

    num_prefix_tokens = 1

    def __init__(self, num_classes: int = 1000, global_pool: str = "token", img_size: int = 32) -> None:
        super().__init__(num_classes)
        assert global_pool == "token"
        self.stem = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // 8) ** 2 + 1, WIDTH))
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("periods", torch.linspace(1, 2, WIDTH), persistent=False)

    def forward_features(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], dim=1) + self.pos_embed
        return tokens + self.mix(tokens).softmax(1).mean(1, keepdim=True) * self.periods

    def forward_head(self, x: Tensor) -> Tensor:
        return self.head(x[:, 0])


class Widened(Convolutional):
    """A layer between the map and the image, as MobileNetV3 has: positions are no images."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(0)
        self.wide = nn.Linear(WIDTH, 40)
        self.head = nn.Linear(40, num_classes) if num_classes else nn.Identity()

    def forward_head(self, x: Tensor) -> Tensor:
        return self.head(self.wide(x.mean((2, 3))))


class Unpooled(Convolutional):
    """One that gives a map for an image."""

    def forward_head(self, x: Tensor) -> Tensor:
        return x


MODELS = {
    "tiny_conv": Convolutional,
    "tiny_vit": Transformer,
    "tiny_wide": Widened,
    "tiny_unpooled": Unpooled,
}


def create_model(model_name: str, pretrained: bool = False, num_classes: int = 1000, **kwargs: Any) -> Trunk:
    assert not pretrained, "weights are read here, not by timm"
    if model_name not in MODELS:
        raise RuntimeError(f"Unknown model ({model_name})")
    return MODELS[model_name](num_classes=num_classes, **kwargs)


def fake_timm() -> ModuleType:
    module = ModuleType("timm")
    module.create_model = create_model  # type: ignore[attr-defined]
    module.__version__ = "0.0"  # type: ignore[attr-defined]
    return module


def random_trunk(name: str, num_classes: int, **kwargs: Any) -> Trunk:
    """Every tensor random: zeros and ones would hide a norm or a bias left out."""
    trunk = create_model(name, num_classes=num_classes, **kwargs).eval()
    generator = torch.Generator().manual_seed(0)
    for key, value in trunk.state_dict().items():
        if value.is_floating_point():
            value.copy_(0.3 * torch.randn(value.shape, generator=generator) + ("norm" in key))
            if key.endswith("running_var"):
                value.abs_()
    return trunk


def write_timm(folder: Path, name: str = "tiny_conv", **about: Any) -> Path:
    """A folder as timm's hub repositories are, with a classifier of 10 classes."""
    folder.mkdir(exist_ok=True)
    save_file(random_trunk(name, 10).state_dict(), folder / "model.safetensors")
    told = {"input_size": [3, 32, 32], "crop_pct": 0.9, "interpolation": "bilinear", "classifier": "head"}
    config = {"architecture": name, "num_classes": 10, "pretrained_cfg": told | about}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


TEXT = {"context_length": 20, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}


def write_mobileclip(folder: Path, name: str = "tiny_conv", causal: bool = False, **vision: Any) -> Path:
    """A folder as open_clip's MobileCLIP is: timm's trunk with 32 outputs, and CLIP's text tower."""
    folder.mkdir(exist_ok=True)
    pool = {"tiny_conv": "avg", "tiny_vit": "token"}[name]
    trunk = random_trunk(name, 32).state_dict()
    tower = TextTower(TextConfig(**TEXT), 32, "gelu").state_dict()
    generator = torch.Generator().manual_seed(1)
    text = {
        key: 0.1 * torch.randn(value.shape, generator=generator) + (".ln_" in key and "weight" in key)
        for key, value in tower.items()
    }
    state = {f"visual.trunk.{key}": value for key, value in trunk.items()}
    state |= {f"text.{key}": value for key, value in text.items()} | {"logit_scale": torch.tensor(2.0)}
    save_file(state, folder / "open_clip_model.safetensors")
    about = {"timm_model_name": name, "timm_pool": pool, "timm_proj": None, "image_size": 32} | vision
    config = {"embed_dim": 32, "vision_cfg": about, "text_cfg": {**TEXT, "no_causal_mask": not causal}}
    images = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear", "resize_mode": "shortest"}
    written = {"model_cfg": {**config, "custom_text": True}, "preprocess_cfg": images}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    return folder
