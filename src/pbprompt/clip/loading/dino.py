"""DINOv2's and DINOv3's folders, as Hugging Face has them: config, preprocessing, tensors."""

import math
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.dino import DinoConfig
from pbprompt.clip.loading.companions import (
    HF_CONFIG,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Images,
    read_image_processor,
    read_json,
    read_preprocessor,
)
from pbprompt.clip.loading.formats import read_tensors
from pbprompt.clip.loading.tensors import count, shape
from pbprompt.errors import InputError

CROPPED = Images(IMAGENET_MEAN, IMAGENET_STD, "crop", "bicubic", 256)
SQUASHED = Images(IMAGENET_MEAN, IMAGENET_STD, "squash", "bilinear")
PUBLISHED = {"dinov2": CROPPED, "dinov2_with_registers": CROPPED, "dinov3_vit": SQUASHED}
ANTIALIASED = "dinov2_with_registers"  # its positions are made smaller with an antialiasing filter

NOT_OF_THE_TOWER = re.compile(r"classifier\.|(.*\.)?mask_token$|(.*\.)?inv_freq$")
PREFIX = re.compile(r"^(dinov2\.|dinov2_with_registers\.|dinov3_vit\.|model\.)+")
NAMES = (
    (r"^embeddings\.cls_token$", "class_embedding"),
    (r"^embeddings\.register_tokens$", "register_embedding"),
    (r"^embeddings\.position_embeddings$", "positional_embedding"),
    (r"^embeddings\.patch_embeddings\.(projection\.)?", "conv1."),
    (r"^(layernorm|norm)\.", "ln_post."),
    (r"^(encoder\.)?layer\.", "blocks."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attention\.(attention\.)?(q_proj|query)\.", ".attn.q."),
    (r"\.attention\.(attention\.)?(k_proj|key)\.", ".attn.k."),
    (r"\.attention\.(attention\.)?(v_proj|value)\.", ".attn.v."),
    (r"\.attention\.(o_proj|output\.dense)\.", ".attn.out_proj."),
    (r"\.mlp\.gate_proj\.", ".mlp.gate."),
    (r"\.mlp\.(fc1|up_proj)\.", ".mlp.c_fc."),
    (r"\.mlp\.(fc2|down_proj|weights_out)\.", ".mlp.c_proj."),
)


def read_dino(path: Path, name: str) -> tuple[BackboneConfig, dict[str, Tensor], None]:
    """The config and the tower's tensors, under `visual.`, of the weights in a Hugging Face folder."""
    config_path = path.parent / HF_CONFIG
    told = read_json(config_path)
    size, images = _preprocessing(path.parent, PUBLISHED[told["model_type"]])
    state = _renamed(read_tensors(path)[0])
    vision = _sizes(path, config_path, told, state, size)
    tensors = _folded(path, state, vision)
    if vision.rope_theta is None:
        antialias = told["model_type"] == ANTIALIASED
        tensors["positional_embedding"] = _fitted(path, tensors, vision, antialias)
    config = BackboneConfig(name, vision.width, vision, None, "gelu", *images)
    return config, {f"visual.{key}": value for key, value in tensors.items()}, None


def _preprocessing(folder: Path, published: Images) -> tuple[int, Images]:
    """The side of images and how they are prepared, as published where no file says."""
    path, told = read_image_processor(folder)
    if told is None:
        return 224, published
    crops = told.get("do_center_crop", told.get("crop_size") is not None)
    side = _side(path, told, "crop_size" if crops else "size")
    return side, read_preprocessor(folder, side, published)


def _side(path: Path, told: dict[str, Any], key: str) -> int:
    side = told.get(key)
    if isinstance(side, dict) and side.get("height") == side.get("width"):
        side = side.get("height")
    if type(side) is not int or side < 1:
        raise InputError(f"{path}: {key} is {told.get(key)!r}; a square of so many pixels is needed")
    return side


def _sizes(
    path: Path, config_path: Path, told: dict[str, Any], state: dict[str, Tensor], size: int
) -> DinoConfig:
    """The architecture from the tensors, and from the config what they do not show; the two must agree."""
    source, third = str(path), told["model_type"] == "dinov3_vit"
    width, channels, patch, _ = shape(source, state, "conv1.weight", 4)
    gated = "blocks.0.mlp.gate.weight" in state or "blocks.0.mlp.weights_in.weight" in state
    hidden = shape(source, state, "blocks.0.mlp.c_proj.weight", 2)[1]
    registers = state["register_embedding"].shape[-2] if "register_embedding" in state else 0
    heads = told.get("num_attention_heads", 6 if third else 12)
    if type(heads) is not int or heads < 1 or width % heads or (third and width // heads % 4):
        raise InputError(f"{config_path}: num_attention_heads is {heads!r}, but the tower is {width} wide")
    if size < patch:
        raise InputError(f"{path.parent}: images of {size} pixels hold no patch of {patch}")
    layers = count(state, r"blocks\.(\d+)\.")
    found = {
        "hidden_size": width,
        "patch_size": patch,
        "num_hidden_layers": layers,
        "num_channels": channels,
        "num_register_tokens": registers,
        "intermediate_size": hidden,
        "use_swiglu_ffn": gated,
        "use_gated_mlp": gated,
    }
    for key, value in found.items():
        if told.get(key, value) != value:
            raise InputError(f"{config_path}: {key} is {told[key]!r}, but the tensors say {value}")
    if not gated and told.get("hidden_act", "gelu") != "gelu":
        raise InputError(f"{config_path}: hidden_act is {told['hidden_act']!r}; only 'gelu' is supported")
    theta = _number(config_path, told, "rope_theta", 100.0) if third else None
    eps = _number(config_path, told, "layer_norm_eps", 1e-5 if third else 1e-6)
    return DinoConfig(size, patch, width, layers, heads, hidden, registers, gated, theta, eps)


def _number(path: Path, told: dict[str, Any], key: str, default: float) -> float:
    value = told.get(key, default)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{path}: {key} is {value!r}; a number above 0 is needed")
    return float(value)


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for key, value in state.items():
        key = PREFIX.sub("", key)
        if NOT_OF_THE_TOWER.match(key):
            continue
        for pattern, name in NAMES:
            key = re.sub(pattern, name, key)
        out[key] = value
    return out


def _folded(path: Path, state: dict[str, Tensor], vision: DinoConfig) -> dict[str, Tensor]:
    """LayerScale in the matrices before it, queries, keys and values in one, biases where there were none."""
    out = dict(state)
    for name in ("class_embedding", "positional_embedding", "register_embedding"):
        if name in out:
            out[name] = (
                out[name].reshape(-1, vision.width) if name != "class_embedding" else out[name].flatten()
            )
    out.setdefault("register_embedding", torch.zeros(0, vision.width))

    def take(key: str) -> Tensor:
        if key not in out:
            raise InputError(f"{path}: lacks the tensor visual.{key}; fetch the whole checkpoint again")
        return out.pop(key)

    for layer in range(vision.layers):
        block = f"blocks.{layer}"
        weights = [take(f"{block}.attn.{part}.weight") for part in "qkv"]
        biases = [
            out.pop(f"{block}.attn.{part}.bias", torch.zeros(len(weight)))
            for part, weight in zip("qkv", weights, strict=True)
        ]
        out[f"{block}.attn.in_proj_weight"], out[f"{block}.attn.in_proj_bias"] = _joined(
            path, weights, biases
        )
        if f"{block}.mlp.weights_in.weight" in out:
            for part in ("weight", "bias"):
                both = take(f"{block}.mlp.weights_in.{part}")
                out[f"{block}.mlp.gate.{part}"], out[f"{block}.mlp.c_fc.{part}"] = both.chunk(2)
        for scale, matrix in (("layer_scale1", "attn.out_proj"), ("layer_scale2", "mlp.c_proj")):
            factor, weight = take(f"{block}.{scale}.lambda1"), take(f"{block}.{matrix}.weight")
            bias = out.pop(f"{block}.{matrix}.bias", torch.zeros(len(weight)))
            if factor.shape != bias.shape or len(weight) != len(factor):
                raise InputError(f"{path}: {block}.{scale} does not fit {matrix}; fetch the checkpoint again")
            out[f"{block}.{matrix}.weight"] = weight.float() * factor.float().unsqueeze(1)
            out[f"{block}.{matrix}.bias"] = bias.float() * factor.float()
    return out


def _joined(path: Path, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, Tensor]:
    if len({weight.shape for weight in weights}) > 1 or len({bias.shape for bias in biases}) > 1:
        raise InputError(f"{path}: queries, keys and values are of other shapes; fetch the checkpoint again")
    return torch.cat(weights), torch.cat([bias.to(weights[0].dtype) for bias in biases])


def _fitted(path: Path, tensors: dict[str, Tensor], vision: DinoConfig, antialias: bool) -> Tensor:
    """The learned positions on the grid of the images given, resampled as transformers does."""
    positions = shape(str(path), tensors, "positional_embedding", 2)[0] - 1
    table, side = tensors["positional_embedding"], math.isqrt(max(positions, 0))
    if side == 0 or side * side != positions:
        raise InputError(f"{path}: has {positions + 1} positions; a square number and 1 is expected")
    if (side, side) == vision.grid:
        return table
    square = table[1:].float().T.reshape(1, vision.width, side, side)
    smaller = F.interpolate(square, vision.grid, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:1].float(), smaller.flatten(2)[0].T])
