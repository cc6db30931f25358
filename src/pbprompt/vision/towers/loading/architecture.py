"""Finding a model's architecture from the shapes of its tensors, and checking that every tensor fits it."""

import re
from typing import cast

import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Activation, Backbone, BackboneConfig, VisionConfig
from pbprompt.vision.towers.loading.checkpoint_config import CheckpointConfig, Family
from pbprompt.vision.towers.loading.tensors import HEAD_WIDTH, count, grid_side, heads_of, shape
from pbprompt.vision.towers.resnet import BATCH_NORM, ResNetConfig
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.timm_tower import looked_at, make_trunk
from pbprompt.vision.towers.vit import EvaConfig, PerceptionConfig, SiglipVisionConfig, VitConfig

MARKS: dict[str, Family] = {  # a tensor that no other family has
    "visual.pool.probe": "siglip",
    "visual.blocks.0.mlp.gate.weight": "eva",
    "visual.attn_pool.probe": "perception",
}
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
    vision, text = (
        _vision(source, state, declared, family),
        _text(source, state, declared, family == "siglip"),
    )
    config = BackboneConfig(
        name, embed_dim, vision, text, cast(Activation, declared.activation), declared.images
    )
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


def _vision(
    source: str, state: dict[str, Tensor], declared: CheckpointConfig, family: Family
) -> VisionConfig:
    if family == "trunk":
        assert declared.trunk is not None
        return looked_at(source, declared.trunk, make_trunk(declared.trunk, source))[0]
    if "visual.layer1.0.conv1.weight" in state:
        width = shape(source, state, "visual.layer1.0.conv1.weight", 4)[0]
        first, second, third, fourth = (count(state, f"visual.layer{n}") for n in (1, 2, 3, 4))
        size = _image_size(source, state, "visual.attnpool.positional_embedding", 32, declared)
        heads = heads_of(source, "vision", width * 32, {})
        return ResNetConfig(size, (first, second, third, fourth), width, heads)
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    if family == "clip" and width > WIDEST_KNOWN_VIT and "vision.heads" not in declared.sizes:
        raise InputError(
            f"{source}: its image tower is {width} wide and the tensors do not show its number of heads; "
            "put the model's open_clip_config.json or config.json beside it"
        )
    class_token = "visual.class_embedding" in state if family == "perception" else family != "siglip"
    blocks = "visual.blocks" if family == "eva" else "visual.transformer.resblocks"
    per_head = PE_HEAD_WIDTHS.get(width, HEAD_WIDTH) if family == "perception" else HEAD_WIDTH
    sizes = (
        _image_size(source, state, "visual.positional_embedding", patch, declared, int(class_token)),
        patch,
        width,
        count(state, blocks),
        heads_of(source, "vision", width, declared.sizes, per_head),
    )
    match family:
        case "eva":
            return EvaConfig(*sizes, shape(source, state, f"{blocks}.0.mlp.gate.weight", 2)[0])
        case "siglip":
            return SiglipVisionConfig(*sizes, shape(source, state, "visual.pool.mlp.c_fc.weight", 2)[0])
        case "perception":
            hidden = shape(source, state, f"{blocks}.0.mlp.c_fc.weight", 2)[0]
            pool_hidden = shape(source, state, "visual.attn_pool.mlp.c_fc.weight", 2)[0]
            return PerceptionConfig(*sizes, hidden, pool_hidden, class_token)
    return VitConfig(*sizes, _hidden(state, blocks, width))


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
    fc = state.get(f"{blocks}.0.mlp.c_fc.weight")
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
