"""EVA-02-CLIP's files: open_clip's with a timm trunk, and the authors' own; its architecture."""

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.clip.eva import EvaConfig
from pbprompt.clip.loading.checkpoint_config import CheckpointConfig, read_open_clip
from pbprompt.clip.loading.companions import OPEN_CLIP_CONFIG
from pbprompt.clip.loading.tensors import count, heads_of, image_size, shape
from pbprompt.errors import InputError

TRUNK = re.compile(r"visual\.(trunk\.)?")
GATES = ("visual.trunk.blocks.0.mlp.fc1_g.weight", "visual.blocks.0.mlp.w1.weight")  # timm's, the authors'
NAMES = (
    ("patch_embed.proj.", "conv1."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    (".norm1.", ".ln_1."),
    (".norm2.", ".ln_2."),
    (".attn.norm.", ".ln_inner."),
    (".attn.inner_attn_ln.", ".ln_inner."),
    (".attn.proj.", ".attn.out_proj."),
    (".attn.q_bias", ".attn.q_proj.bias"),
    (".attn.v_bias", ".attn.v_proj.bias"),
    (".mlp.fc1_g.", ".mlp.gate."),
    (".mlp.w1.", ".mlp.gate."),
    (".mlp.fc1_x.", ".mlp.up."),
    (".mlp.w2.", ".mlp.up."),
    (".mlp.fc2.", ".mlp.proj."),
    (".mlp.w3.", ".mlp.proj."),
    (".mlp.norm.", ".mlp.ln_inner."),
    (".mlp.ffn_ln.", ".mlp.ln_inner."),
    ("visual.norm.", "visual.ln_post."),
)


def is_eva_file(state: dict[str, Tensor]) -> bool:
    """Whether a file's tensors have EVA-02's gated MLPs."""
    return any(key in state for key in GATES)


def is_eva(state: dict[str, Tensor]) -> bool:
    """The same of tensors under our names."""
    return "visual.blocks.0.mlp.gate.weight" in state


def eva_layout(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names: the text tower's without `text.`, queries, keys and values in one matrix."""
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        name = TRUNK.sub("visual.", key, count=1).removeprefix("text.")
        if ".rope." in name:  # computed, not learned
            continue
        for old, new in NAMES if name.startswith("visual.") else ():
            name = name.replace(old, new)
        if name == "visual.class_embedding":  # stored for a batch of one, as the positions are
            value = value.flatten()
        out[name] = value.squeeze(0) if name == "visual.positional_embedding" else value
    for layer in range(count(out, r"visual\.blocks\.(\d+)\.")):
        _join(path, out, f"visual.blocks.{layer}.attn")
    return out


def _join(path: Path, state: dict[str, Tensor], attention: str) -> None:
    """One matrix and bias for queries, keys and values; keys have no bias of their own."""
    weights = [state.pop(f"{attention}.{part}_proj.weight", None) for part in "qkv"]
    if any(weight is None for weight in weights):
        raise InputError(f"{path}: lacks a projection of {attention}; fetch the whole checkpoint again")
    query, value = (state.pop(f"{attention}.{part}_proj.bias", None) for part in "qv")
    if query is None or value is None:
        raise InputError(f"{path}: lacks a bias of {attention}; fetch the whole checkpoint again")
    state[f"{attention}.in_proj_weight"] = torch.cat([weight for weight in weights if weight is not None])
    state[f"{attention}.in_proj_bias"] = torch.cat([query, torch.zeros_like(query), value])


def read_eva_config(path: Path) -> CheckpointConfig:
    """open_clip's config where there is one; the authors' files come alone, and all of theirs use GELU."""
    config = path.parent / OPEN_CLIP_CONFIG
    return replace(
        read_open_clip(config, trunk=True) if config.is_file() else CheckpointConfig("gelu"), family="eva"
    )


def eva_vision(source: str, state: dict[str, Tensor], told: CheckpointConfig) -> EvaConfig:
    """The image tower's sizes from the tensors."""
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    return EvaConfig(
        image_size=image_size(source, state, "visual.positional_embedding", patch, told.sizes),
        patch_size=patch,
        width=width,
        layers=count(state, r"visual\.blocks\.(\d+)\."),
        heads=heads_of(source, "image", width),
        hidden=shape(source, state, "visual.blocks.0.mlp.gate.weight", 2)[0],
    )
