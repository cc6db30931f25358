"""PE-Core's files: Meta's own, and open_clip's with a timm trunk; its architecture."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.clip.loading.checkpoint_config import CheckpointConfig, read_open_clip
from pbprompt.clip.loading.companions import HALF, OPEN_CLIP_CONFIG, Images
from pbprompt.clip.loading.tensors import HEAD_WIDTH, count, heads_of, image_size, shape
from pbprompt.clip.perception import PerceptionConfig

PROBES = ("visual.attn_pool.probe", "visual.trunk.attn_pool.latent")  # Meta's, timm's
PE_IMAGES = Images(HALF, HALF, "squash", "bilinear")
HEAD_WIDTHS = {1536: 96}  # of the largest; the others' are CLIP's
NAMES = (
    ("visual.trunk.", "visual."),
    ("patch_embed.proj.", "conv1."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    ("visual.norm_pre.", "visual.ln_pre."),
    ("visual.norm.", "visual.ln_post."),
    ("visual.blocks.", "visual.transformer.resblocks."),
    (".norm1.", ".ln_1."),
    (".norm2.", ".ln_2."),
    (".attn.qkv.", ".attn.in_proj_"),
    (".attn.proj.", ".attn.out_proj."),
    ("attn_pool.latent", "attn_pool.probe"),
    ("attn_pool.proj.", "attn_pool.attn.out_proj."),
    ("attn_pool.norm.", "attn_pool.ln_1."),
    ("attn_pool.layernorm.", "attn_pool.ln_1."),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
)


def is_perception_file(state: dict[str, Tensor]) -> bool:
    """Whether a file's tensors have PE-Core's pool behind CLIP's first LayerNorm (SigLIP's has none)."""
    norms = ("visual.ln_pre.weight", "visual.trunk.norm_pre.weight")
    return any(key in state for key in PROBES) and any(key in state for key in norms)


def is_perception(state: dict[str, Tensor]) -> bool:
    """The same of tensors under our names."""
    return PROBES[0] in state


def perception_layout(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under our names: the text tower's without `text.`, the projection as a layer with its bias."""
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("text.")
        for old, new in NAMES if name.startswith("visual.") else ():
            name = name.replace(old, new)
        if name == "visual.class_embedding":  # timm stores it for a batch of one, and the positions
            value = value.flatten()
        out[name] = value.squeeze(0) if name == "visual.positional_embedding" else value
    for part in ("weight", "bias"):  # timm's pool has its query apart
        query, rest = (out.pop(f"visual.attn_pool.{which}.{part}", None) for which in ("q", "kv"))
        if query is not None and rest is not None:
            out[f"visual.attn_pool.attn.in_proj_{part}"] = torch.cat([query, rest])
    if (projection := out.pop("visual.proj", None)) is not None:  # Meta's, without a bias
        bias = projection.new_zeros(projection.shape[-1:])
        out |= {"visual.head.weight": projection.t(), "visual.head.bias": bias}
    return out


def read_perception_config(path: Path) -> CheckpointConfig:
    """open_clip's config where there is one; Meta's files come alone, and all of theirs use GELU."""
    config = path.parent / OPEN_CLIP_CONFIG
    told = (
        read_open_clip(config, trunk=True) if config.is_file() else CheckpointConfig("gelu", images=PE_IMAGES)
    )
    return replace(told, family="perception")


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
