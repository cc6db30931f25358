"""Tiny checkpoints of EVA-02-CLIP and PE-Core: open_clip's folders with timm's trunks, the authors' files.

Names and shapes are timm's and open_clip's own, kept in tests/parity/towers.json with what their towers give
for the values drawn here (scripts/record_towers.py).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from siglip_folder import write
from torch import Tensor

KEPT = json.loads((Path(__file__).parents[1] / "parity" / "towers.json").read_text(encoding="utf-8"))
TOWERS = tuple(name for name in KEPT if name != "peers")
IMAGES = {
    "eva": {"interpolation": "bicubic", "resize_mode": "shortest"},
    "perception": {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "interpolation": "bilinear",
        "resize_mode": "squash",
    },
}
EVA_NAMES = (
    (".attn.norm.", ".attn.inner_attn_ln."),
    (".q_proj.bias", ".q_bias"),
    (".v_proj.bias", ".v_bias"),
    (".mlp.fc1_g.", ".mlp.w1."),
    (".mlp.fc1_x.", ".mlp.w2."),
    (".mlp.fc2.", ".mlp.w3."),
    (".mlp.norm.", ".mlp.ffn_ln."),
)
PE_NAMES = (
    ("patch_embed.proj.", "conv1."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    ("norm_pre.", "ln_pre."),
    ("attn_pool.norm.", "attn_pool.layernorm."),
    ("visual.norm.", "visual.ln_post."),
    ("norm1.", "ln_1."),
    ("norm2.", "ln_2."),
    ("blocks.", "transformer.resblocks."),
    (".attn.qkv.", ".attn.in_proj_"),
    (".attn.proj.", ".attn.out_proj."),
    ("attn_pool.proj.", "attn_pool.attn.out_proj."),
    ("attn_pool.latent", "attn_pool.probe"),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
)


def drawn(tower: str) -> dict[str, Tensor]:
    """A state dict by seed: the same draws as when the numbers were recorded."""
    generator, state, shapes = np.random.RandomState(0), {}, KEPT[tower]["shapes"]
    for key in sorted(shapes):
        values = 0.2 * generator.standard_normal(shapes[key])
        if "norm" in key or ".ln_" in key:
            values += key.endswith("weight")
        state[key] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return state | {"logit_scale": torch.tensor(3.5)}


def write_trunk(folder: Path, tower: str) -> Path:
    """open_clip's folder."""
    folder.mkdir(exist_ok=True)
    save_file(drawn(tower), folder / "open_clip_model.safetensors")
    write(folder / "open_clip_config.json", **trunk_config(tower))
    return folder


def trunk_config(tower: str) -> dict[str, Any]:
    family = tower.split()[0]
    timm = {"timm_model_name": family, "timm_pool": "map" if family == "perception" else "token"}
    text = {
        "context_length": KEPT[tower]["context"],
        "vocab_size": 1200,
        "width": 64,
        "heads": 1,
        "layers": 1,
    }
    model = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, **timm, "timm_model_pretrained": False, "timm_proj": None},
        "text_cfg": {"context_length": KEPT[tower]["context"], **text},
        "custom_text": True,
    }
    return {"model_cfg": model, "preprocess_cfg": IMAGES[family]}


def write_eva_original(path: Path) -> Path:
    """The authors' file: other names, and the tables of its rotary positions beside the weights."""
    state = {key.replace("visual.trunk.", "visual."): value for key, value in drawn("eva").items()}
    for old, new in EVA_NAMES:
        state = {key.replace(old, new): value for key, value in state.items()}
    state |= {
        "visual.rope.freqs_cos": torch.ones(16, 64),
        "visual.blocks.0.attn.rope.freqs_sin": torch.ones(4),
    }
    torch.save(state, path)
    return path


def write_perception_original(path: Path, tower: str) -> Path:
    """Meta's file: CLIP's names, the text tower at the top, one matrix in the pool, no bias at the end."""
    state = {key.replace("visual.trunk.", "visual."): value for key, value in drawn(tower).items()}
    for part in ("weight", "bias"):
        pool = [state.pop(f"visual.attn_pool.{which}.{part}") for which in ("q", "kv")]
        state[f"visual.attn_pool.attn.in_proj_{part}"] = torch.cat(pool)
    for old, new in PE_NAMES:
        state = {
            key.replace(old, new) if key.startswith("visual.") else key: value for key, value in state.items()
        }
    state = {key.removeprefix("text."): value for key, value in state.items()}
    state["visual.proj"] = state.pop("visual.head.weight").T.contiguous()
    del state["visual.head.bias"]
    state["visual.positional_embedding"] = state["visual.positional_embedding"][0]
    if "visual.class_embedding" in state:
        state["visual.class_embedding"] = state["visual.class_embedding"].flatten()
    torch.save(state, path)
    return path
