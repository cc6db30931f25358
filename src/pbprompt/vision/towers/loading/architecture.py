"""Finding a model's architecture from the shapes of its tensors, and checking that every tensor fits it."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Activation, Backbone, BackboneConfig, VisionConfig
from pbprompt.vision.towers.layers import PatchConfig
from pbprompt.vision.towers.loading.config import CheckpointConfig, Family
from pbprompt.vision.towers.loading.timm_tower import open_clip_trunk
from pbprompt.vision.towers.resnet import BATCH_NORM, ResNetConfig
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import EvaConfig, PerceptionConfig, SiglipVisionConfig, VitConfig

MARKS: dict[str, Family] = {  # a tensor that no other family has
    "visual.pool.probe": "siglip",
    "visual.blocks.0.mlp.gate.weight": "eva",
    "visual.attn_pool.probe": "perception",
}
SIZES: dict[Family, type[PatchConfig]] = {
    "clip": VitConfig,
    "siglip": SiglipVisionConfig,
    "eva": EvaConfig,
    "perception": PerceptionConfig,
}
HEAD_WIDTH = 64  # of every tower that OpenAI trained
CLIP_VOCABULARY = 49408
WIDEST_KNOWN_VIT = 1024  # wider ones, by others, have other head widths
PE_HEAD_WIDTHS = {1536: 96}  # of the largest; the others' are CLIP's
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def family_of(state: dict[str, Tensor]) -> Family:
    """Whose image tower a state dict in OpenAI's layout has."""
    trunk: Family = "trunk" if any(key.startswith("visual.trunk.") for key in state) else "clip"
    return next((family for mark, family in MARKS.items() if mark in state), trunk)


def find_architecture(
    source: str, name: str, state: dict[str, Tensor], declared: CheckpointConfig
) -> BackboneConfig:
    """The architecture of a state dict in OpenAI's layout; `declared.activation` must be known by now."""
    family = family_of(state)
    if family == "siglip":  # whose text tower ends in the image tower's width
        embed_dim = shape(source, state, "visual.conv1.weight", 4)[0]
    else:
        embed_dim = shape(source, state, "text_projection", 2)[1]
    text = _text(source, state, declared, family == "siglip")
    vision: VisionConfig
    if family == "trunk":
        vision, embed_dim = open_clip_trunk(source, declared.trunk or {}, embed_dim)
    elif "visual.layer1.0.conv1.weight" in state:
        vision = _resnet(source, state, declared)
    else:
        vision = _transformer(source, state, declared, family)
    activation = cast(Activation, declared.activation)
    config = BackboneConfig(name, embed_dim, vision, text, activation, declared.images)
    for place, expected in declared.sizes.items():
        tower, _, size = place.rpartition(".")
        found = getattr(getattr(config, tower) if tower else config, size, None)
        if found is not None and found != expected:
            raise InputError(f"{source}: the config says {place} is {expected}, the tensors say {found}")
    return config


def check_tensors(source: str, config: BackboneConfig, state: dict[str, Tensor]) -> None:
    """Refuse missing, unknown, misshapen and non-float tensors."""
    expected = expected_shapes(config)
    if missing := sorted(expected.keys() - state.keys()):
        raise InputError(f"{source}: lacks {_some(missing)}; fetch the whole checkpoint again")
    if unknown := sorted(state.keys() - expected.keys()):
        raise InputError(
            f"{source}: has {_some(unknown)} that the towers of its kind lack; "
            "give a model that nothing was added to"
        )
    for key, wanted in expected.items():
        if state[key].shape != wanted:
            raise InputError(
                f"{source}: the tensor {key} is {list(state[key].shape)}, expected {list(wanted)}; "
                "the file is damaged or of another architecture"
            )
        if state[key].dtype not in FLOATS:
            dtype = str(state[key].dtype).removeprefix("torch.")
            raise InputError(
                f"{source}: the tensor {key} is {dtype}; give weights in float16, bfloat16 or float32"
            )


def _text(source: str, state: dict[str, Tensor], declared: CheckpointConfig, siglip: bool) -> TextConfig:
    vocab_size, width = shape(source, state, "token_embedding.weight", 2)
    if declared.vocabulary == "clip" and vocab_size > CLIP_VOCABULARY:
        raise InputError(
            f"{source}: has {vocab_size} tokens, CLIP's vocabulary {CLIP_VOCABULARY}; "
            "give the folder of the model, with its config and its tokenizer.json"
        )
    return TextConfig(
        context_length=shape(source, state, "positional_embedding", 2)[0],
        vocab_size=vocab_size,
        width=width,
        heads=heads_of(source, "text", width, declared.sizes),
        layers=count(state, "transformer.resblocks"),
        causal=declared.sizes.get("text.causal", not siglip),
        hidden=_hidden(state, "transformer.resblocks", width),
        reads_last=siglip,
    )


def _resnet(source: str, state: dict[str, Tensor], declared: CheckpointConfig) -> ResNetConfig:
    width = shape(source, state, "visual.layer1.0.conv1.weight", 4)[0]
    first, second, third, fourth = (count(state, f"visual.layer{n}") for n in (1, 2, 3, 4))
    size = _image_size(source, state, "visual.attnpool.positional_embedding", 32, declared)
    heads = heads_of(source, "vision", width * 32, {})
    return ResNetConfig(size, (first, second, third, fourth), width, heads)


def _transformer(
    source: str, state: dict[str, Tensor], declared: CheckpointConfig, family: Family
) -> PatchConfig:
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    if family == "clip" and width > WIDEST_KNOWN_VIT and "vision.heads" not in declared.sizes:
        raise InputError(
            f"{source}: its image tower is {width} wide and the tensors do not show its number of heads; "
            "put the model's open_clip_config.json or config.json beside it"
        )
    class_token = "visual.class_embedding" in state if family == "perception" else family != "siglip"
    blocks = "visual.blocks" if family == "eva" else "visual.transformer.resblocks"
    per_head = PE_HEAD_WIDTHS.get(width, HEAD_WIDTH) if family == "perception" else HEAD_WIDTH
    config = SIZES[family](
        _image_size(source, state, "visual.positional_embedding", patch, declared, int(class_token)),
        patch,
        width,
        count(state, blocks),
        heads_of(source, "vision", width, declared.sizes, per_head),
        _hidden(state, blocks, width),
    )
    if isinstance(config, PerceptionConfig):
        pool_hidden = shape(source, state, "visual.attn_pool.mlp.c_fc.weight", 2)[0]
        return replace(config, pool_hidden=pool_hidden, class_token=class_token)
    return config


def _image_size(
    source: str, state: dict[str, Tensor], key: str, patch: int, declared: CheckpointConfig, more: int = 1
) -> int:
    """From the positions, unless the config says so many pixels that the last do not fill a patch."""
    side = grid_side(source, state, key, more)
    size = declared.sizes.get("vision.image_size", side * patch)
    if not isinstance(size, int) or size // patch != side:
        raise InputError(f"{source}: the config says images of {size} pixels, the tensors say {side * patch}")
    return size


def _hidden(state: dict[str, Tensor], blocks: str, width: int) -> int | None:
    """The width inside a tower's MLPs, where it is not 4·width."""
    fc = state.get(f"{blocks}.0.mlp.c_fc.weight", state.get(f"{blocks}.0.mlp.gate.weight"))
    return None if fc is None or len(fc) == 4 * width else len(fc)


def expected_shapes(config: BackboneConfig) -> dict[str, torch.Size]:
    """Keys and shapes in OpenAI's layout: batch norms apart, `logit_scale` among them."""
    shapes = {"logit_scale": torch.Size([])} if config.text else {}
    if config.text and config.text.reads_last:
        shapes["logit_bias"] = torch.Size([])
    for key, meta in Backbone(config).state_dict().items():
        key = key.removeprefix("textual.")
        if key.endswith("num_batches_tracked"):  # of training alone
            continue
        if not isinstance(config.vision, ResNetConfig) or not re.search(r"\.(conv\d|downsample)\.", key):
            shapes[key] = meta.shape
        elif key.endswith(".weight"):
            shapes[key.replace(".downsample.", ".downsample.0.")] = meta.shape
        else:
            norm = key.removesuffix(".bias").replace(".conv", ".bn").replace(".downsample", ".downsample.1")
            shapes |= {f"{norm}.{part}": meta.shape for part in BATCH_NORM}
    return shapes


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ("the tensor " if len(keys) == 1 else "the tensors ") + ", ".join(keys[:3]) + more


def count(state: dict[str, Tensor], blocks: str) -> int:
    """One more than the largest index, so that a hole in the numbering shows as a missing tensor."""
    found = (re.match(rf"{re.escape(blocks)}\.(\d+)\.", key) for key in state)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def shape(source: str, state: dict[str, Tensor], key: str, ndim: int) -> tuple[int, ...]:
    """A tensor's shape, where it is there, of `ndim` dimensions, and not empty."""
    if key not in state:
        raise InputError(f"{source}: lacks the tensor {key}; give a whole model, image and text tower")
    if state[key].ndim != ndim or 0 in state[key].shape:
        raise InputError(
            f"{source}: the tensor {key} is {list(state[key].shape)}; {ndim} dimensions are expected"
        )
    return tuple(state[key].shape)


def grid_side(source: str, state: dict[str, Tensor], key: str, more: int = 1) -> int:
    """From the positions: a square grid of patches, and `more` for the whole image."""
    positions = shape(source, state, key, 2)[0]
    side = math.isqrt(max(positions - more, 0))
    if side == 0 or side * side + more != positions:
        raise InputError(
            f"{source}: the tensor {key} has {positions} positions; a square number and {more} is expected"
        )
    return side


def heads_of(
    source: str, tower: str, width: int, declared: Mapping[str, Any], head_width: int = HEAD_WIDTH
) -> int:
    """How many heads a tower has, "vision" or "text": as the config says, else those of `head_width`."""
    heads = declared.get(f"{tower}.heads")
    if heads is None:
        if width % head_width:
            raise InputError(
                f"{source}: the {tower} tower is {width} wide, not a multiple of CLIP's {head_width}"
            )
        return width // head_width
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"{source}: the config says {heads!r} heads, but the {tower} tower is {width} wide")
    return heads
