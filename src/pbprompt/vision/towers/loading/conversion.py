"""Bringing every checkpoint to one layout: OpenAI's key names and orientation."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pbprompt.errors import InputError

State = dict[str, Tensor]
Names = tuple[tuple[str, str], ...]  # patterns, and what takes their place in a tensor's name

# Constants that some writers store beside the weights, and what is computed.
NOT_WEIGHTS = re.compile(
    r"(input_resolution|context_length|vocab_size|attn_mask|(.*\.)?position_ids|(.*\.)?num_batches_tracked)"
)
LONG_POSITIONS = "positional_embedding_res"
LONG_KEEPS = 20  # positions that LongCLIP leaves as CLIP has them

HF_NAMES: Names = (
    (r"^text_model\.head\.", "text_head."),  # SigLIP's
    (r"^text_model\.", ""),
    (r"^vision_model\.", "visual."),
    (r"^visual\.head\.(probe|mlp\.)", r"visual.pool.\1"),  # SigLIP's, with the next two
    (r"^visual\.head\.attention\.", "visual.pool.attn."),
    (r"^visual\.head\.layernorm\.", "visual.pool.ln_1."),
    (r"embeddings\.(token_embedding\.|class_embedding)", r"\1"),
    (r"embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"embeddings\.patch_embedding\.", "conv1."),
    (r"pre_layrnorm\.", "ln_pre."),
    (r"post_layernorm\.", "ln_post."),
    (r"final_layer_norm\.", "ln_final."),
    (r"encoder\.layers\.", "transformer.resblocks."),
    (r"\.layer_norm([12])\.", r".ln_\1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"\.self_attn\.", ".attn."),
)
HF_PROJECTIONS = {"visual_projection.weight": "visual.proj", "text_projection.weight": "text_projection"}

# Of image towers that open_clip builds with timm, and that their authors name otherwise.
TIMM_NAMES: Names = (
    (r"^visual\.trunk\.", "visual."),
    (r"patch_embed\.proj\.", "conv1."),
    (r"cls_token", "class_embedding"),
    (r"pos_embed", "positional_embedding"),
    (r"^visual\.norm\.", "visual.ln_post."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.proj\.", ".attn.out_proj."),
)
EVA_GATES = ("visual.trunk.blocks.0.mlp.fc1_g.weight", "visual.blocks.0.mlp.w1.weight")  # timm's, its own
EVA_NAMES: Names = (
    *TIMM_NAMES,
    (r"\.attn\.(norm|inner_attn_ln)\.", ".ln_inner."),
    (r"\.attn\.([qv])_bias", r".attn.\1_proj.bias"),
    (r"\.mlp\.(fc1_g|w1)\.", ".mlp.gate."),
    (r"\.mlp\.(fc1_x|w2)\.", ".mlp.up."),
    (r"\.mlp\.(fc2|w3)\.", ".mlp.proj."),
    (r"\.mlp\.(norm|ffn_ln)\.", ".mlp.ln_inner."),
)
PE_PROBES = ("visual.trunk.attn_pool.latent", "visual.attn_pool.probe")  # timm's, its own
PE_NORMS = ("visual.trunk.norm_pre.weight", "visual.ln_pre.weight")  # which SigLIP's tower lacks
PE_NAMES: Names = (
    *TIMM_NAMES,
    (r"^visual\.norm_pre\.", "visual.ln_pre."),
    (r"^visual\.blocks\.", "visual.transformer.resblocks."),
    (r"\.attn\.qkv\.", ".attn.in_proj_"),
    (r"attn_pool\.latent", "attn_pool.probe"),
    (r"attn_pool\.proj\.", "attn_pool.attn.out_proj."),
    (r"attn_pool\.(norm|layernorm)\.", "attn_pool.ln_1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
)


def is_hugging_face(state: State) -> bool:
    return any(key.startswith(("vision_model.", "text_model.")) for key in state)


def to_openai(state: State) -> State:
    """The state dict in OpenAI's layout. Constants go; unknown keys stay, to be refused later."""
    if state and all(key.startswith("module.") for key in state):  # saved from distributed training
        state = {key.removeprefix("module."): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not NOT_WEIGHTS.fullmatch(key)}
    for number in ("logit_scale", "logit_bias"):
        if number in state and state[number].numel() == 1:
            state[number] = state[number].reshape(())
    if is_hugging_face(state):
        return _from_hugging_face(state)
    if "cls_token" in state and any(key.startswith("blocks.0.") for key in state):
        raise TensorError(
            "an image tower alone, in the names of its authors; give its Hugging Face folder or hub "
            "id (DINOv2, DINOv3), or timm/NAME"
        )
    if any(key.startswith("image_encoder.") for key in state):
        raise TensorError("has MobileCLIP's own names; give the same model in open_clip's form (…-OpenCLIP)")
    # open_clip's other layout keeps the whole text tower under one name
    state = {key.removeprefix("text."): value for key, value in state.items()}
    if any(gate in state for gate in EVA_GATES):
        return _from_eva(state)
    if any(probe in state for probe in PE_PROBES) and any(norm in state for norm in PE_NORMS):
        return _from_perception(state)
    return _with_long_positions(state) if LONG_POSITIONS in state else state


def rename(key: str, names: Names) -> str:
    for pattern, name in names:
        key = re.sub(pattern, name, key)
    return key


def take(state: State, key: str) -> Tensor:
    """A tensor that is to become a part of another one."""
    if key not in state:
        raise TensorError(f"lacks the tensor {key}; fetch the whole checkpoint again")
    return state.pop(key)


class TensorError(InputError):
    """What is wrong with a file's tensors; `of_file` says with which file's."""


@contextmanager
def of_file(path: object) -> Iterator[None]:
    """Around all that looks at a file's tensors."""
    try:
        yield
    except TensorError as error:
        raise InputError(f"{path}: {error}") from None


@contextmanager
def fitting_together() -> Iterator[None]:
    """While tensors are joined and turned: shapes of which that cannot be done are the file's."""
    try:
        yield
    except (RuntimeError, IndexError):
        raise TensorError("its tensors do not fit together: the file is damaged; fetch it again") from None


def join_attention(state: State, without_bias: str = "") -> None:
    """Queries, keys and values in one matrix, in this order; `without_bias`: those that may have none."""
    first = ".q_proj.weight"
    for attention in [key.removesuffix(first) for key in state if key.endswith(first)]:
        weights = [take(state, f"{attention}.{part}_proj.weight") for part in "qkv"]
        for part in without_bias:
            state.setdefault(f"{attention}.{part}_proj.bias", weights[0].new_zeros(weights[0].shape[:1]))
        biases = [take(state, f"{attention}.{part}_proj.bias") for part in "qkv"]
        state[f"{attention}.in_proj_weight"] = torch.stack(weights).flatten(0, 1)
        state[f"{attention}.in_proj_bias"] = torch.stack(biases).flatten()


def _with_long_positions(state: State) -> State:
    """LongCLIP's two tables of positions as the one its tower adds: CLIP's first 20, then the stretched."""
    long, short = state.pop(LONG_POSITIONS), state.get("positional_embedding")
    if short is None or short.shape != long.shape:
        raise TensorError(f"positional_embedding does not fit {LONG_POSITIONS}; fetch the checkpoint again")
    return state | {"positional_embedding": torch.cat([short[:LONG_KEEPS], long[LONG_KEEPS:]])}


def _from_hugging_face(state: State) -> State:
    turned = {name: state.pop(key).t() for key, name in HF_PROJECTIONS.items() if key in state}
    out = turned | {rename(key, HF_NAMES): value for key, value in state.items()}
    join_attention(out)
    return out


def _from_trunk(state: State, names: Names) -> State:
    """The image tower's tensors under our names; timm stores class token and positions for a batch of one."""
    out = {rename(key, names) if key.startswith("visual.") else key: value for key, value in state.items()}
    for name in ("visual.class_embedding", "visual.positional_embedding"):
        if name in out:
            out[name] = out[name].flatten() if "class" in name else out[name].squeeze(0)
    return out


def _from_eva(state: State) -> State:
    """Without the turns, which are computed."""
    out = _from_trunk({key: value for key, value in state.items() if ".rope." not in key}, EVA_NAMES)
    join_attention(out, without_bias="k")
    return out


def _from_perception(state: State) -> State:
    """With the projection as a layer with its bias."""
    out = _from_trunk(state, PE_NAMES)
    for part in ("weight", "bias"):  # timm's pool has its query apart
        query, rest = (out.pop(f"visual.attn_pool.{which}.{part}", None) for which in ("q", "kv"))
        if query is not None and rest is not None:
            out[f"visual.attn_pool.attn.in_proj_{part}"] = torch.cat([query, rest])
    if (projection := out.pop("visual.proj", None)) is not None:  # Meta's, without a bias
        bias = projection.new_zeros(projection.shape[-1:])
        out |= {"visual.head.weight": projection.t(), "visual.head.bias": bias}
    return out
