"""Finding a model's architecture from the shapes of its tensors, and checking that every tensor fits it.

The file that errors are about is named by `of_file`, around all of it.
"""

import math
import re
from dataclasses import replace
from typing import cast

import torch

from pbprompt.vision.towers.backbone import Activation, Backbone, BackboneConfig, VisionConfig
from pbprompt.vision.towers.layers import PatchConfig
from pbprompt.vision.towers.loading.config import CheckpointConfig, Family
from pbprompt.vision.towers.loading.conversion import State, TensorError
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


def family_of(state: State) -> Family:
    """Whose image tower a state dict in OpenAI's layout has."""
    trunk: Family = "trunk" if any(key.startswith("visual.trunk.") for key in state) else "clip"
    return next((family for mark, family in MARKS.items() if mark in state), trunk)


def find_architecture(name: str, state: State, declared: CheckpointConfig) -> BackboneConfig:
    """The architecture of a state dict in OpenAI's layout; `declared.activation` must be known by now."""
    family = family_of(state)
    if family == "siglip":  # whose text tower ends in the image tower's width
        embed_dim = shape(state, "visual.conv1.weight", 4)[0]
    else:
        embed_dim = shape(state, "text_projection", 2)[1]
    text = _text(state, declared, family == "siglip")
    vision: VisionConfig
    if family == "trunk":
        vision, embed_dim = open_clip_trunk(declared.trunk or {}, embed_dim)
    elif "visual.layer1.0.conv1.weight" in state:
        vision = _resnet(state, declared)
    else:
        vision = _transformer(state, declared, family)
    activation = cast(Activation, declared.activation)
    config = BackboneConfig(name, embed_dim, vision, text, activation, declared.images)
    for place, expected in declared.sizes.items():
        tower, _, size = place.rpartition(".")
        found = getattr(getattr(config, tower) if tower else config, size, None)
        if found is not None and found != expected:
            raise TensorError(f"the config says {place} is {expected}, the tensors say {found}")
    return config


def check_tensors(config: BackboneConfig, state: State) -> None:
    """Refuse missing, unknown, misshapen and non-float tensors."""
    expected = expected_shapes(config)
    if missing := sorted(expected.keys() - state.keys()):
        raise TensorError(f"lacks {_some(missing)}; fetch the whole checkpoint again")
    if unknown := sorted(state.keys() - expected.keys()):
        raise TensorError(
            f"has {_some(unknown)} that the towers of its kind lack; give a model that nothing was added to"
        )
    for key, wanted in expected.items():
        if state[key].shape != wanted:
            raise TensorError(
                f"the tensor {key} is {list(state[key].shape)}, expected {list(wanted)}; "
                "the file is damaged or of another architecture"
            )
        if state[key].dtype not in FLOATS:
            dtype = str(state[key].dtype).removeprefix("torch.")
            raise TensorError(f"the tensor {key} is {dtype}; give weights in float16, bfloat16 or float32")


def _text(state: State, declared: CheckpointConfig, siglip: bool) -> TextConfig:
    vocab_size, width = shape(state, "token_embedding.weight", 2)
    if declared.vocabulary == "clip" and vocab_size > CLIP_VOCABULARY:
        raise TensorError(
            f"has {vocab_size} tokens, CLIP's vocabulary {CLIP_VOCABULARY}; "
            "give the folder of the model, with its config and its tokenizer.json"
        )
    return TextConfig(
        context_length=shape(state, "positional_embedding", 2)[0],
        vocab_size=vocab_size,
        width=width,
        heads=heads_of("text", width, declared),
        layers=count(state, "transformer.resblocks"),
        causal=declared.sizes.get("text.causal", not siglip),
        hidden=_hidden(state, "transformer.resblocks", width),
        reads_last=siglip,
    )


def _resnet(state: State, declared: CheckpointConfig) -> ResNetConfig:
    width = shape(state, "visual.layer1.0.conv1.weight", 4)[0]
    first, second, third, fourth = (count(state, f"visual.layer{n}") for n in (1, 2, 3, 4))
    size = _image_size(state, "visual.attnpool.positional_embedding", 32, declared)
    return ResNetConfig(size, (first, second, third, fourth), width, width * 32 // HEAD_WIDTH)


def _transformer(state: State, declared: CheckpointConfig, family: Family) -> PatchConfig:
    width, _, _, patch = shape(state, "visual.conv1.weight", 4)
    if family == "clip" and width > WIDEST_KNOWN_VIT and "vision.heads" not in declared.sizes:
        raise TensorError(
            f"its image tower is {width} wide and the tensors do not show its number of heads; "
            "put the model's open_clip_config.json or config.json beside it"
        )
    class_token = "visual.class_embedding" in state if family == "perception" else family != "siglip"
    blocks = "visual.blocks" if family == "eva" else "visual.transformer.resblocks"
    per_head = PE_HEAD_WIDTHS.get(width, HEAD_WIDTH) if family == "perception" else HEAD_WIDTH
    config = SIZES[family](
        _image_size(state, "visual.positional_embedding", patch, declared, int(class_token)),
        patch,
        width,
        count(state, blocks),
        heads_of("vision", width, declared, per_head),
        _hidden(state, blocks, width),
    )
    if isinstance(config, PerceptionConfig):
        pool_hidden = shape(state, "visual.attn_pool.mlp.c_fc.weight", 2)[0]
        return replace(config, pool_hidden=pool_hidden, class_token=class_token)
    return config


def _image_size(state: State, key: str, patch: int, declared: CheckpointConfig, more: int = 1) -> int:
    """From the positions, unless the config says so many pixels that the last do not fill a patch."""
    side = grid_side(state, key, more)
    size = declared.sizes.get("vision.image_size", side * patch)
    if not isinstance(size, int) or size // patch != side:
        raise TensorError(f"the config says images of {size} pixels, the tensors say {side * patch}")
    return size


def _hidden(state: State, blocks: str, width: int) -> int | None:
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


def count(state: State, blocks: str) -> int:
    """One more than the largest index, so that a hole in the numbering shows as a missing tensor."""
    found = (re.match(rf"{re.escape(blocks)}\.(\d+)\.", key) for key in state)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def shape(state: State, key: str, ndim: int) -> tuple[int, ...]:
    """A tensor's shape, where it is there, of `ndim` dimensions, and not empty."""
    if key not in state:
        raise TensorError(f"lacks the tensor {key}; give a whole model, image and text tower")
    if state[key].ndim != ndim or 0 in state[key].shape:
        raise TensorError(f"the tensor {key} is {list(state[key].shape)}; {ndim} dimensions are expected")
    return tuple(state[key].shape)


def grid_side(state: State, key: str, more: int = 1) -> int:
    """From the positions: a square grid of patches, and `more` for the whole image."""
    positions = shape(state, key, 2)[0]
    side = math.isqrt(max(positions - more, 0))
    if side == 0 or side * side + more != positions:
        raise TensorError(
            f"the tensor {key} has {positions} positions; a square number and {more} is expected"
        )
    return side


def heads_of(tower: str, width: int, declared: CheckpointConfig, head_width: int = HEAD_WIDTH) -> int:
    """How many heads a tower has, "vision" or "text": as the config says, else those of `head_width`."""
    heads = declared.sizes.get(f"{tower}.heads")
    if heads is None and width % head_width:
        raise TensorError(f"the {tower} tower is {width} wide, not a multiple of CLIP's {head_width}")
    heads = width // head_width if heads is None else heads
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise TensorError(f"the config says {heads!r} heads, but the {tower} tower is {width} wide")
    return heads
