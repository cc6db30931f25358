"""EVA-02-CLIP's and PE-Core's files: their authors' own, and open_clip's with a timm trunk."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.clip.eva import EvaConfig
from pbprompt.clip.loading.checkpoint_config import CheckpointConfig, read_open_clip
from pbprompt.clip.loading.companions import HALF, OPEN_CLIP_CONFIG, Images
from pbprompt.clip.loading.tensors import HEAD_WIDTH, count, heads_of, image_size, shape
from pbprompt.clip.perception import PerceptionConfig
from pbprompt.errors import InputError

GATES = ("visual.trunk.blocks.0.mlp.fc1_g.weight", "visual.blocks.0.mlp.w1.weight")  # timm's, the authors'
TIMM_NAMES = (
    ("visual.trunk.", "visual."),
    ("patch_embed.proj.", "conv1."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    ("visual.norm.", "visual.ln_post."),
    (".norm1.", ".ln_1."),
    (".norm2.", ".ln_2."),
    (".attn.proj.", ".attn.out_proj."),
)
EVA_NAMES = (
    *TIMM_NAMES,
    (".attn.norm.", ".ln_inner."),
    (".attn.inner_attn_ln.", ".ln_inner."),
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
)

PROBES = ("visual.attn_pool.probe", "visual.trunk.attn_pool.latent")  # Meta's, timm's
PE_IMAGES = Images(HALF, HALF, "squash", "bilinear")
HEAD_WIDTHS = {1536: 96}  # of the largest; the others' are CLIP's
PERCEPTION_NAMES = (
    *TIMM_NAMES,
    ("visual.norm_pre.", "visual.ln_pre."),
    ("visual.blocks.", "visual.transformer.resblocks."),
    (".attn.qkv.", ".attn.in_proj_"),
    ("attn_pool.latent", "attn_pool.probe"),
    ("attn_pool.proj.", "attn_pool.attn.out_proj."),
    ("attn_pool.norm.", "attn_pool.ln_1."),
    ("attn_pool.layernorm.", "attn_pool.ln_1."),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
)


def is_eva_file(state: dict[str, Tensor]) -> bool:
    """Whether a file's tensors have EVA-02's gated MLPs."""
    return any(key in state for key in GATES)


def is_eva(state: dict[str, Tensor]) -> bool:
    """The same of tensors under our names."""
    return "visual.blocks.0.mlp.gate.weight" in state


def _renamed(state: dict[str, Tensor], names: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """The image tower's tensors under our names, the text tower's without `text.`."""
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("text.")
        for old, new in names if name.startswith("visual.") else ():
            name = name.replace(old, new)
        if name == "visual.class_embedding":  # timm stores it for a batch of one, and the positions
            value = value.flatten()
        out[name] = value.squeeze(0) if name == "visual.positional_embedding" else value
    return out


def eva_layout(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names: queries, keys and values in one matrix, without what is computed."""
    learned = {key: value for key, value in state.items() if ".rope." not in key}
    out = _renamed(learned, EVA_NAMES)
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
    """The authors' files come alone, and all of theirs use GELU."""
    return replace(_beside(path) or CheckpointConfig("gelu"), family="eva")


def _beside(path: Path) -> CheckpointConfig | None:
    """open_clip's config, where there is one."""
    config = path.parent / OPEN_CLIP_CONFIG
    return read_open_clip(config, trunk=True) if config.is_file() else None


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


def is_perception_file(state: dict[str, Tensor]) -> bool:
    """Whether a file's tensors have PE-Core's pool behind CLIP's first LayerNorm (SigLIP's has none)."""
    norms = ("visual.ln_pre.weight", "visual.trunk.norm_pre.weight")
    return any(key in state for key in PROBES) and any(key in state for key in norms)


def is_perception(state: dict[str, Tensor]) -> bool:
    """The same of tensors under our names."""
    return PROBES[0] in state


def perception_layout(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names: the projection as a layer with its bias."""
    out = _renamed(state, PERCEPTION_NAMES)
    for part in ("weight", "bias"):  # timm's pool has its query apart
        query, rest = (out.pop(f"visual.attn_pool.{which}.{part}", None) for which in ("q", "kv"))
        if query is not None and rest is not None:
            out[f"visual.attn_pool.attn.in_proj_{part}"] = torch.cat([query, rest])
    if (projection := out.pop("visual.proj", None)) is not None:  # Meta's, without a bias
        bias = projection.new_zeros(projection.shape[-1:])
        out |= {"visual.head.weight": projection.t(), "visual.head.bias": bias}
    return out


def read_perception_config(path: Path) -> CheckpointConfig:
    """Meta's files come alone, and all of theirs use GELU."""
    return replace(_beside(path) or CheckpointConfig("gelu", images=PE_IMAGES), family="perception")


def perception_vision(source: str, state: dict[str, Tensor], told: CheckpointConfig) -> PerceptionConfig:
    """The image tower's sizes from the tensors."""
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    class_token = "visual.class_embedding" in state
    return PerceptionConfig(
        image_size=image_size(
            source, state, "visual.positional_embedding", patch, told.sizes, more=int(class_token)
        ),
        patch_size=patch,
        width=width,
        layers=count(state, r"visual\.transformer\.resblocks\.(\d+)\."),
        heads=heads_of(source, "image", width, HEAD_WIDTHS.get(width, HEAD_WIDTH)),
        hidden=shape(source, state, "visual.transformer.resblocks.0.mlp.c_fc.weight", 2)[0],
        pool_hidden=shape(source, state, "visual.attn_pool.mlp.c_fc.weight", 2)[0],
        class_token=class_token,
    )
