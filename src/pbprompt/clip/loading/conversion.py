"""Bringing every checkpoint to one layout: OpenAI's key names and orientation."""

import re
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.clip.loading.trunks import eva_layout, is_eva_file, is_perception_file, perception_layout
from pbprompt.errors import InputError

# Constants that some writers store beside the weights.
NOT_WEIGHTS = re.compile(
    r"(input_resolution|context_length|vocab_size|attn_mask|(.*\.)?position_ids|(.*\.)?num_batches_tracked)"
)

LONG_POSITIONS = "positional_embedding_res"
LONG_KEEPS = 20  # positions that LongCLIP leaves as CLIP has them

HF_NAMES = (
    (r"text_model\.embeddings\.token_embedding\.weight", "token_embedding.weight"),
    (r"text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"text_model\.final_layer_norm\.", "ln_final."),
    (r"vision_model\.embeddings\.class_embedding", "visual.class_embedding"),
    (r"vision_model\.embeddings\.patch_embedding\.", "visual.conv1."),
    (r"vision_model\.embeddings\.position_embedding\.weight", "visual.positional_embedding"),
    (r"vision_model\.pre_layrnorm\.", "visual.ln_pre."),
    (r"vision_model\.post_layernorm\.", "visual.ln_post."),
    (r"text_model\.head\.", "text_head."),  # SigLIP's from here
    (r"vision_model\.head\.probe", "visual.pool.probe"),
    (r"vision_model\.head\.attention\.", "visual.pool.attn."),
    (r"vision_model\.head\.layernorm\.", "visual.pool.ln_1."),
    (r"vision_model\.head\.mlp\.", "visual.pool.mlp."),
    (r"text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"vision_model\.encoder\.layers\.", "visual.transformer.resblocks."),
)
HF_BLOCK_NAMES = (
    (".layer_norm1.", ".ln_1."),
    (".layer_norm2.", ".ln_2."),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
    (".self_attn.out_proj.", ".attn.out_proj."),
)
HF_PROJECTIONS = {"visual_projection.weight": "visual.proj", "text_projection.weight": "text_projection"}
HF_ATTENTION_PART = re.compile(r"(.*)\.self_attn\.([qkv])_proj\.(weight|bias)")


def is_hugging_face(state: dict[str, Tensor]) -> bool:
    return any(key.startswith(("vision_model.", "text_model.")) for key in state)


def to_openai(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict in OpenAI's layout. Constants go; unknown keys stay, to be refused later."""
    if state and all(key.startswith("module.") for key in state):  # saved from distributed training
        state = {key.removeprefix("module."): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not NOT_WEIGHTS.fullmatch(key)}
    if is_hugging_face(state):
        return _from_hugging_face(path, state)
    for recognises, convert in ((is_eva_file, eva_layout), (is_perception_file, perception_layout)):
        if recognises(state):
            return convert(path, state)
    if "cls_token" in state and any(key.startswith("blocks.0.") for key in state):
        raise InputError(
            f"{path}: an image tower alone, in the names of its authors; give its Hugging Face folder or hub "
            "id (DINOv2, DINOv3), or timm/NAME"
        )
    if any(key.startswith("image_encoder.") for key in state):
        raise InputError(
            f"{path}: has MobileCLIP's own names; give the same model in open_clip's form (…-OpenCLIP)"
        )
    # open_clip's other layout keeps the whole text tower under one name
    state = {key.removeprefix("text."): value for key, value in state.items()}
    return _with_long_positions(path, state) if LONG_POSITIONS in state else state


def _with_long_positions(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LongCLIP's two tables of positions as the one its tower adds: CLIP's first 20, then the stretched."""
    long, short = state[LONG_POSITIONS], state.get("positional_embedding")
    if short is None or short.shape != long.shape:
        raise InputError(
            f"{path}: positional_embedding does not fit {LONG_POSITIONS}; fetch the checkpoint again"
        )
    rest = {key: value for key, value in state.items() if key != LONG_POSITIONS}
    return rest | {"positional_embedding": torch.cat([short[:LONG_KEEPS], long[LONG_KEEPS:]])}


def _from_hugging_face(path: Path, state: dict[str, Tensor]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for key, value in state.items():
        part = HF_ATTENTION_PART.fullmatch(key)
        if part is None:
            out[HF_PROJECTIONS.get(key) or _rename(key)] = value.t() if key in HF_PROJECTIONS else value
        elif part[2] == "q":
            out[f"{_rename(part[1])}.attn.in_proj_{part[3]}"] = _joined(path, state, part)
    return out


def _joined(path: Path, state: dict[str, Tensor], part: re.Match[str]) -> Tensor:
    """OpenAI keeps queries, keys and values in one matrix, in this order."""
    keys = [f"{part[1]}.self_attn.{letter}_proj.{part[3]}" for letter in "qkv"]
    missing = [key for key in keys if key not in state]
    if missing:
        raise InputError(f"{path}: lacks the tensor {missing[0]}; fetch the checkpoint again")
    return torch.cat([state[key] for key in keys])


def _rename(key: str) -> str:
    for pattern, name in HF_NAMES:
        key = re.sub(f"^{pattern}", name, key)
    for old, new in HF_BLOCK_NAMES:
        key = key.replace(old, new)
    return key
