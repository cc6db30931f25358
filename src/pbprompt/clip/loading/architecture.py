"""Finding a model's architecture from the shapes of its tensors, and checking that every tensor fits it."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pbprompt.clip.backbone import Activation, Backbone, BackboneConfig, VisionConfig
from pbprompt.clip.loading.checkpoint_config import CheckpointConfig
from pbprompt.clip.loading.siglip import find_siglip
from pbprompt.clip.loading.tensors import count, heads_of, image_size, shape
from pbprompt.clip.loading.timm_files import trunk_vision
from pbprompt.clip.loading.trunks import eva_vision, perception_vision
from pbprompt.clip.resnet import ResNetConfig
from pbprompt.clip.text import TextConfig
from pbprompt.clip.vit import VitConfig
from pbprompt.errors import InputError

CLIP_VOCABULARY = 49408
WIDEST_KNOWN_VIT = 1024  # wider ones, by others, have other head widths
VISION: dict[str, Callable[[str, dict[str, Tensor], CheckpointConfig], VisionConfig]] = {
    "eva": eva_vision,
    "perception": perception_vision,
    "trunk": trunk_vision,
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def find_architecture(
    source: str, name: str, state: dict[str, Tensor], told: CheckpointConfig
) -> BackboneConfig:
    """The architecture of a state dict in OpenAI's layout; `told.activation` must be known by now."""
    find = find_siglip if told.family == "siglip" else _find_causal
    config = find(source, name, state, told)
    for place, expected in told.sizes.items():
        found = _size(config, place)
        if found is not None and found != expected:
            raise InputError(f"{source}: the config says {place} is {expected}, the tensors say {found}")
    return config


def _find_causal(source: str, name: str, state: dict[str, Tensor], told: CheckpointConfig) -> BackboneConfig:
    """CLIP's text tower beside an image tower of CLIP's, EVA's, PE-Core's or timm's."""
    activation: Activation = "quick_gelu" if told.activation == "quick_gelu" else "gelu"
    embed_dim = shape(source, state, "text_projection", 2)[1]
    vision, text = VISION.get(told.family, _vision)(source, state, told), _text(source, state, told)
    return BackboneConfig(name, embed_dim, vision, text, activation, *told.images)


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


def _text(source: str, state: dict[str, Tensor], told: CheckpointConfig) -> TextConfig:
    vocab_size, width = shape(source, state, "token_embedding.weight", 2)
    context_length = shape(source, state, "positional_embedding", 2)[0]
    layers = count(state, r"transformer\.resblocks\.(\d+)\.")
    if told.vocabulary == "clip" and vocab_size > CLIP_VOCABULARY:
        raise InputError(
            f"{source}: has {vocab_size} tokens, CLIP's vocabulary {CLIP_VOCABULARY}; "
            "give the folder of the model, with its config and its tokenizer.json"
        )
    heads = told.sizes.get("text.heads") or heads_of(source, "text", width)
    return TextConfig(context_length, vocab_size, width, heads, layers, told.sizes.get("text.causal", True))


def _vision(source: str, state: dict[str, Tensor], told: CheckpointConfig) -> VisionConfig:
    if "visual.layer1.0.conv1.weight" in state:
        width = shape(source, state, "visual.layer1.0.conv1.weight", 4)[0]
        first, second, third, fourth = (count(state, rf"visual\.layer{n}\.(\d+)\.") for n in (1, 2, 3, 4))
        size = image_size(source, state, "visual.attnpool.positional_embedding", 32, told.sizes)
        blocks = (first, second, third, fourth)
        return ResNetConfig(size, blocks, width, heads_of(source, "image", width * 32))
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    heads = told.sizes.get("vision.heads")
    if heads is None and width > WIDEST_KNOWN_VIT:
        raise InputError(
            f"{source}: its image tower is {width} wide and the tensors do not show its number of heads; "
            "put the model's open_clip_config.json or config.json beside it"
        )
    return VitConfig(
        image_size=image_size(source, state, "visual.positional_embedding", patch, told.sizes),
        patch_size=patch,
        width=width,
        layers=count(state, r"visual\.transformer\.resblocks\.(\d+)\."),
        heads=heads or heads_of(source, "image", width),
        hidden=_hidden(state, width),
    )


def _hidden(state: dict[str, Tensor], width: int) -> int | None:
    """The width inside the image tower's MLPs, where it is not 4·width."""
    fc = state.get("visual.transformer.resblocks.0.mlp.c_fc.weight")
    return None if fc is None or len(fc) == 4 * width else len(fc)


def _size(config: BackboneConfig, place: str) -> Any:
    value: Any = config
    for part in place.split("."):
        value = getattr(value, part, None)
    return value


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
            norm = re.sub(r"\.conv(\d)\.bias$", r".bn\1", key).replace(".downsample.bias", ".downsample.1")
            shapes |= {
                f"{norm}.{part}": meta.shape for part in ("weight", "bias", "running_mean", "running_var")
            }
    return shapes


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ("the tensor " if len(keys) == 1 else "the tensors ") + ", ".join(keys[:3]) + more
