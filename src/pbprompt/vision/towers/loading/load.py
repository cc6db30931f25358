"""Loading a backbone from any of the usual files."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Activation, Backbone, BackboneConfig
from pbprompt.vision.towers.lite import read_embedded
from pbprompt.vision.towers.loading.architecture import check_tensors, family_of, find_architecture
from pbprompt.vision.towers.loading.config import read_declared, read_tokenizer
from pbprompt.vision.towers.loading.conversion import (
    State,
    TensorError,
    fitting_together,
    is_hugging_face,
    of_file,
    to_openai,
)
from pbprompt.vision.towers.loading.dino import PUBLISHED, read_dino
from pbprompt.vision.towers.loading.files import HF_CONFIG, INDEX, check_finite, read_json, read_tensors
from pbprompt.vision.towers.loading.hub import EMBEDDED, OPENAI_MODELS, find_weights
from pbprompt.vision.towers.loading.timm_tower import TimmConfig, read_timm
from pbprompt.vision.towers.resnet import ResNetConfig, fold_batch_norms
from pbprompt.vision.towers.several import Several
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.tokenizer import SentenceTokenizer

Reader = Callable[[Path, str], tuple[BackboneConfig, State, nn.Module | None]]
HF_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # or an index of the parts of one
OTHER_TOWERS = (  # without text, and not read
    *("beit", "convnext", "convnextv2", "deit", "dinov3_convnext"),
    *("resnet", "swin", "swinv2", "vit", "vit_mae"),
)
WITHOUT_TEXT = 100.0  # the scale of cosines between images, which an image tower has none of: CLIP's


def load_backbone(
    name_or_path: str | Path | Sequence[str | Path | Backbone] = "lite",
    *,
    activation: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Backbone:
    """A frozen backbone by name, path or hub id.

    Args:
        name_or_path: "lite" or "lite-vit", which are embedded; one of OpenAI's names ("RN50", "ViT-B/16", …)
            or a hub id ("hf-hub:ORG/NAME"), downloaded once; or a path: an OpenAI `.pt`, an open_clip
            `.safetensors` or `.bin`, or a Hugging Face folder of CLIP, MetaCLIP 2, SigLIP, DINOv2 or DINOv3
            (the last two are image towers without text). Of a list, several side by side, for methods that
            can see by several: an image is opened once and seen by each.
        activation: "quick_gelu" or "gelu", where the file does not tell which the model uses; of several, for
            those that do not tell.
        device: "auto" is a GPU where there is one.
        dtype: of the weights.

    Example:
        >>> from PIL import Image
        >>> backbone = load_backbone("lite")
        >>> pixels = backbone.preprocess(Image.new("RGB", (200, 100))).unsqueeze(0)
        >>> features = backbone.image(pixels.to(backbone.device)).global_  # of length 1
        >>> features.shape[1] == backbone.embed_dim
        True
    """
    if isinstance(name_or_path, str | Path):
        return _load(name_or_path, activation, device, dtype)
    names, alone = list(name_or_path), len(name_or_path) == 1
    if not names:
        raise InputError("no backbone is given: give one, such as lite")
    towers = [
        one if isinstance(one, Backbone) else _load(one, activation, device, dtype, alone) for one in names
    ]
    return towers[0] if alone else Several(towers)


def _load(
    name: str | Path,
    activation: str | None,
    device: str | torch.device,
    dtype: torch.dtype,
    alone: bool = True,
) -> Backbone:
    target = _device(device)
    config, state, tokenizer, visual = _read(str(name), activation, alone)
    identity = fingerprint(config, state)
    logit_scale = float(state["logit_scale"].double().exp()) if config.text else WITHOUT_TEXT
    logit_bias = float(state["logit_bias"]) if "logit_bias" in state else None
    folded = fold_batch_norms(state) if isinstance(config.vision, ResNetConfig) else state
    towers = {}
    for key, value in folded.items():
        if key not in ("logit_scale", "logit_bias"):
            place = key if key.startswith("visual.") else f"textual.{key}"
            towers[place] = value.to(target, dtype if value.is_floating_point() else None).contiguous()
    return Backbone(config, tokenizer, visual).load_weights(towers, logit_scale, identity, logit_bias)


def backbone_fingerprint(name_or_path: str | Path = "lite", *, activation: str | None = None) -> str:
    """That of `load_backbone`, without building the towers."""
    config, state, *_ = _read(str(name_or_path), activation)
    return fingerprint(config, state)


def _read(
    name: str, activation: str | None, alone: bool = True
) -> tuple[BackboneConfig, State, SentenceTokenizer | None, nn.Module | None]:
    """Config, weights and, where they are not CLIP's, tokenizer and image tower."""
    if activation not in (None, *get_args(Activation)):
        raise InputError(f"activation {activation!r} is unknown: use quick_gelu or gelu")
    tokenizer, visual = None, None
    if name in EMBEDDED:
        config, state = read_embedded(name)
        with of_file(name):
            _settle(config.activation, activation, alone)
        return config, state, tokenizer, visual
    path = find_weights(name)
    with of_file(path):
        if (read := _image_only_reader(path)) is not None:
            config, state, visual = read(path, name)
            _settle(config.activation, activation, alone)
        else:
            raw, of_the_file = read_tensors(path)
            with fitting_together():
                state = to_openai(raw)
            declared = read_declared(path, family_of(state), is_hugging_face(raw), of_the_file)
            found = "quick_gelu" if name in OPENAI_MODELS else declared.activation  # as OpenAI trained them
            declared = replace(declared, activation=_settle(found, activation, alone))
            config = find_architecture(name, state, declared)
            if declared.vocabulary != "clip":
                tokenizer = read_tokenizer(path.parent, cast(TextConfig, config.text), declared.vocabulary)
        if visual is None:
            check_tensors(config, state)
    check_finite(path, state)
    return config, state, tokenizer, visual


def _device(wanted: str | torch.device) -> torch.device:
    wanted = distributed.pick(wanted) if isinstance(wanted, str) else wanted
    try:
        torch.zeros(1, device=wanted).tolist()  # a meta device holds no values
    except (RuntimeError, AssertionError):  # a name torch does not know, or a device that is not there
        raise InputError(
            f"device {str(wanted)!r} cannot be used here: use auto, cpu, or a CUDA device torch sees"
        ) from None
    return torch.device(wanted)


def _settle(declared: str | None, requested: str | None, alone: bool) -> str:
    """The activation. One of several backbones that tells its own needs none."""
    if declared and requested and alone and declared != requested:
        raise TensorError(f"the model uses {declared}; leave out activation={requested} (--activation)")
    if not declared and not requested:
        raise TensorError(
            "the file does not tell its activation; say --activation quick_gelu (OpenAI's models) "
            "or --activation gelu (most of open_clip's)"
        )
    return str(declared or requested)


def _image_only_reader(path: Path) -> Reader | None:
    """What reads the weights, where they are an image tower's alone: it gives the config, the tensors and,
    where another library built it, the tower."""
    config_path = path.parent / HF_CONFIG
    if path.name.removesuffix(INDEX) not in HF_WEIGHTS or not config_path.is_file():
        return None
    config = read_json(config_path)
    kind = config.get("model_type")
    if isinstance(config.get("architecture"), str) and "model_type" not in config:
        return read_timm
    if kind in OTHER_TOWERS:
        raise InputError(
            f"{config_path}: model_type is {kind!r}; of image towers without text DINOv2 and DINOv3 "
            f"({', '.join(PUBLISHED)}) and timm's models (timm/NAME) are supported"
        )
    return read_dino if kind in PUBLISHED else None


def fingerprint(config: BackboneConfig, state: State) -> str:
    """SHA-256 over what decides the features: the weights in OpenAI's layout, as float32, and the settings
    that the weights do not show (activation, heads, input size and normalisation, how an image is fitted)."""
    heads, text_heads = (getattr(tower, "heads", None) for tower in (config.vision, config.text))
    mean, std, fit, interpolation, resize = config.images
    size, activation = config.vision.image_size, config.activation
    settings: tuple[object, ...] = (activation, heads, text_heads, size, mean, std)
    if (fit, interpolation) != ("crop", "bicubic"):  # CLIP's, older than these settings
        settings += (fit, interpolation)
    if config.text is None or isinstance(config.vision, TimmConfig):
        settings += (config.vision, resize, interpolation)
    elif resize is not None:
        settings += ("short side", resize)
    if config.text is not None and not (config.text.causal or config.text.reads_last):
        settings += ("not causal",)
    whole = hashlib.sha256(repr(settings).encode())
    keys = sorted(state)
    with ThreadPoolExecutor() as pool:  # hashing lets go of the interpreter, and large towers take seconds
        for key, digest in zip(keys, pool.map(_digest, (state[key] for key in keys)), strict=True):
            whole.update(f"{key} {tuple(state[key].shape)} ".encode() + digest)
    return whole.hexdigest()


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(values.reshape(-1).numpy().data.cast("B")).digest()
