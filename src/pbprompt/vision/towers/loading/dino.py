"""DINOv2's and DINOv3's folders, as Hugging Face has them: config, preprocessing, tensors."""

import math
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from pbprompt.vision.towers.backbone import BackboneConfig, Images
from pbprompt.vision.towers.loading.architecture import count, grid_side, shape
from pbprompt.vision.towers.loading.config import read_preprocessor
from pbprompt.vision.towers.loading.conversion import (
    Names,
    State,
    TensorError,
    fitting_together,
    join_attention,
    of_file,
    rename,
    take,
)
from pbprompt.vision.towers.loading.files import HF_CONFIG, read_json, read_tensors
from pbprompt.vision.towers.loading.timm_tower import IMAGENET_MEAN, IMAGENET_STD
from pbprompt.vision.towers.vit import DinoConfig

CROPPED = Images(IMAGENET_MEAN, IMAGENET_STD, "crop", "bicubic", 256)
SQUASHED = Images(IMAGENET_MEAN, IMAGENET_STD, "squash", "bilinear")
PUBLISHED = {"dinov2": CROPPED, "dinov2_with_registers": CROPPED, "dinov3_vit": SQUASHED}
ANTIALIASED = "dinov2_with_registers"  # its positions are made smaller with an antialiasing filter

NOT_OF_THE_TOWER = re.compile(r"classifier\.|(.*\.)?mask_token$|(.*\.)?inv_freq$")
NAMES: Names = (
    (r"^(dinov2\.|dinov2_with_registers\.|dinov3_vit\.|model\.)*", "visual."),
    (r"\.embeddings\.cls_token$", ".class_embedding"),
    (r"\.embeddings\.register_tokens$", ".register_embedding"),
    (r"\.embeddings\.position_embeddings$", ".positional_embedding"),
    (r"\.embeddings\.patch_embeddings\.(projection\.)?", ".conv1."),
    (r"^visual\.(layernorm|norm)\.", "visual.ln_post."),
    (r"^visual\.(encoder\.)?layer\.", "visual.blocks."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attention\.(attention\.)?(q_proj|query)\.", ".attn.q_proj."),
    (r"\.attention\.(attention\.)?(k_proj|key)\.", ".attn.k_proj."),
    (r"\.attention\.(attention\.)?(v_proj|value)\.", ".attn.v_proj."),
    (r"\.attention\.(o_proj|output\.dense)\.", ".attn.out_proj."),
    (r"\.mlp\.gate_proj\.", ".mlp.gate."),
    (r"\.mlp\.(fc1|up_proj)\.", ".mlp.c_fc."),
    (r"\.mlp\.(fc2|down_proj|weights_out)\.", ".mlp.c_proj."),
)
SCALES = (("layer_scale1", "attn.out_proj"), ("layer_scale2", "mlp.c_proj"))  # and the matrices before them


def read_dino(path: Path, name: str) -> tuple[BackboneConfig, State, None]:
    """The config and the tower's tensors, under `visual.`, of the weights in a Hugging Face folder."""
    config_path = path.parent / HF_CONFIG
    declared = read_json(config_path)
    size, images = read_preprocessor(path.parent, None, PUBLISHED[declared["model_type"]])
    raw = {rename(key, NAMES): value for key, value in read_tensors(path)[0].items()}
    state = {key: value for key, value in raw.items() if not NOT_OF_THE_TOWER.match(key, len("visual."))}
    vision = _sizes(config_path, declared, state, size)
    with fitting_together():
        _fold(state, vision)
    if vision.rope_theta is None:
        _fit_positions(state, vision, antialias=declared["model_type"] == ANTIALIASED)
    return BackboneConfig(name, vision.width, vision, None, "gelu", images), state, None


def _sizes(path: Path, declared: dict[str, Any], state: State, size: int) -> DinoConfig:
    """The architecture from the tensors, and from the config what they do not show; the two must agree."""
    third, first = declared["model_type"] == "dinov3_vit", "visual.blocks.0.mlp"
    width, channels, patch, _ = shape(state, "visual.conv1.weight", 4)
    gated = f"{first}.gate.weight" in state or f"{first}.weights_in.weight" in state
    hidden = shape(state, f"{first}.c_proj.weight", 2)[1]
    registers = state["visual.register_embedding"].shape[-2] if "visual.register_embedding" in state else 0
    layers = count(state, "visual.blocks")
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
    with of_file(path):
        heads = declared.get("num_attention_heads", 6 if third else 12)
        if type(heads) is not int or heads < 1 or width % heads or (third and width // heads % 4):
            raise TensorError(f"num_attention_heads is {heads!r}, but the tower is {width} wide")
        if size < patch:
            raise TensorError(f"images of {size} pixels hold no patch of {patch}")
        for key, value in found.items():
            if declared.get(key, value) != value:
                raise TensorError(f"{key} is {declared[key]!r}, but the tensors say {value}")
        if not gated and (activation := declared.get("hidden_act", "gelu")) != "gelu":
            raise TensorError(f"hidden_act is {activation!r}; only 'gelu' is supported")
        theta = _number(declared, "rope_theta", 100.0) if third else None
        eps = _number(declared, "layer_norm_eps", 1e-5 if third else 1e-6)
    return DinoConfig(size, patch, width, layers, heads, hidden, registers, gated, theta, eps)


def _number(declared: dict[str, Any], key: str, usual: float) -> float:
    value = declared.get(key, usual)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TensorError(f"{key} is {value!r}; a number above 0 is needed")
    return float(value)


def _fold(state: State, vision: DinoConfig) -> None:
    """LayerScale in the matrices before it, queries, keys and values in one, biases where there were none."""
    state.setdefault("visual.register_embedding", torch.zeros(0, vision.width))
    for name in ("class_embedding", "positional_embedding", "register_embedding"):
        if (key := f"visual.{name}") in state:  # stored for a batch of one
            state[key] = state[key].reshape(-1, vision.width)
    state["visual.class_embedding"] = take(state, "visual.class_embedding").flatten()
    join_attention(state, without_bias="qkv")
    for block in (f"visual.blocks.{layer}" for layer in range(vision.layers)):
        if f"{block}.mlp.weights_in.weight" in state:
            for part in ("weight", "bias"):
                both = take(state, f"{block}.mlp.weights_in.{part}")
                state[f"{block}.mlp.gate.{part}"], state[f"{block}.mlp.c_fc.{part}"] = both.chunk(2)
        for scale, matrix in SCALES:
            factor = take(state, f"{block}.{scale}.lambda1").float()
            weight = take(state, f"{block}.{matrix}.weight").float()
            bias = state.pop(f"{block}.{matrix}.bias", torch.zeros(len(weight))).float()
            state[f"{block}.{matrix}.weight"] = weight * factor.view(len(weight), 1)
            state[f"{block}.{matrix}.bias"] = bias * factor


def _fit_positions(state: State, vision: DinoConfig, antialias: bool) -> None:
    """The learned positions on the grid of the images given, resampled as transformers does."""
    key = "visual.positional_embedding"
    side = grid_side(state, key)
    if (side, side) == vision.grid:
        return
    table = state[key].float()
    square = table[1:].T.reshape(1, vision.width, side, side)
    smaller = F.interpolate(square, vision.grid, mode="bicubic", align_corners=False, antialias=antialias)
    state[key] = torch.cat([table[:1], smaller.flatten(2)[0].T])
