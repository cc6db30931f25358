"""A tuned model on disk: settings, learnable parameters, and all that is needed to use and check it again."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from pbprompt import __version__
from pbprompt.clip.backbone import Backbone
from pbprompt.clip.loading.load import load_backbone
from pbprompt.config import from_dict, to_dict
from pbprompt.errors import InputError
from pbprompt.files import read_text, write_bytes, write_text
from pbprompt.methods.base import Method, build_method
from pbprompt.registry import find_method

FORMAT = "pbprompt-model"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


@dataclass(frozen=True)
class ModelInfo:
    """What a model folder says about its model."""

    method: str
    config: dict[str, Any]
    classes: tuple[str, ...]
    template: str
    backbone: dict[str, str]  # name, activation, fingerprint
    seed: int
    shots: int
    data: dict[str, Any] = field(default_factory=dict)  # dataset, content hash, draw hash
    metrics: dict[str, Any] = field(default_factory=dict)
    library: str = __version__


def describe_model(
    method: Method, *, seed: int, shots: int, data: dict[str, Any], metrics: dict[str, Any]
) -> ModelInfo:
    """The facts of a freshly tuned method."""
    backbone = method.backbone
    return ModelInfo(
        method=method.name,
        config=to_dict(method.config),
        classes=method.classes,
        template=method.template,
        backbone={
            "name": backbone.config.name,
            "activation": backbone.config.activation,
            "fingerprint": backbone.fingerprint,
        },
        seed=seed,
        shots=shots,
        data=data,
        metrics=metrics,
    )


def save_model(folder: Path, method: Method, info: ModelInfo, card: str) -> None:
    """Write the folder; the config comes last, so that a folder with one is whole."""
    state = {name: value.detach().cpu().contiguous() for name, value in method.state_dict().items()}
    write_bytes(folder / WEIGHTS, save(state))
    write_text(folder / CARD, card)
    text = json.dumps({"format": FORMAT, "version": 1, **asdict(info)}, indent=1, ensure_ascii=False)
    write_text(folder / CONFIG, text + "\n")


def read_info(folder: Path) -> ModelInfo:
    """What the folder says, checked."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(f"{folder}: no model here ({CONFIG} is missing): give a folder that `fit` wrote")
    try:
        values = json.loads(read_text(path))
        if values.pop("format") != FORMAT or values.pop("version") != 1:
            raise ValueError("another format")
        info = ModelInfo(**{**values, "classes": tuple(values["classes"])})
        if not {"name", "activation", "fingerprint"} <= set(info.backbone):
            raise ValueError("the backbone's identity is missing")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a model of pbprompt ({error}): fit it again") from None
    return info


def load_model(
    folder: Path, backbone: Backbone | str | None = None, device: str | torch.device = "cpu"
) -> tuple[Method, ModelInfo]:
    """The tuned method, prepared for its classes, on the backbone it was tuned on and no other.

    `backbone`: one that is loaded already, or where to load it from if not from where it was.
    """
    info = read_info(folder)
    if not isinstance(backbone, Backbone):
        name = backbone or info.backbone["name"]
        activation = None if name == "lite" else info.backbone["activation"]
        backbone = load_backbone(name, activation=activation, device=device)
    if backbone.fingerprint != info.backbone["fingerprint"]:
        raise InputError(
            f"{folder}: tuned on {info.backbone['name']} with other weights than these "
            f"({info.backbone['fingerprint'][:12]} ≠ {backbone.fingerprint[:12]}): give the same checkpoint"
        )
    kind = find_method(info.method)
    try:
        config = from_dict(kind.Config, info.config)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    method = build_method(kind, config, backbone, info.seed)
    method.prepare(info.classes, info.template)  # first: some methods' parameters are one per class
    path = folder / WEIGHTS
    try:
        method.load_state_dict(load(path.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: does not hold this model's parameters ({why}): fit it again") from None
    method.to(backbone.device)
    return method, info
