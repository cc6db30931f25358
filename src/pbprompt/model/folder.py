"""A tuned model on disk: settings, learnable parameters, and all that is needed to use and check it again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.loading.load import load_backbone
from pbprompt.config import from_dict, to_dict
from pbprompt.errors import InputError
from pbprompt.files import read_text, write_bytes, write_text
from pbprompt.methods.base import Method, MethodConfig, build_method
from pbprompt.model.calibration import CALIBRATION, Calibration, write_calibration
from pbprompt.model.card import ModelInfo, model_card
from pbprompt.registry import find_method
from pbprompt.train.checkpoint import CHECKPOINT

FORMAT = "pbprompt-model"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def describe_model(
    method: Method, *, seed: int = 0, shots: int = 0, data: dict[str, Any] | None = None
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
        data=data or {},
    )


def save_model(
    folder: Path, method: Method, info: ModelInfo, calibration: Calibration | None = None, name: str = "model"
) -> None:
    """Write the folder; the config comes last, so that a folder with one is whole. `name`: on the card."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose a folder")
    state = {name: value.detach().cpu().contiguous() for name, value in method.state_dict().items()}
    write_bytes(folder / WEIGHTS, save(state))
    if calibration is None:
        (folder / CALIBRATION).unlink(missing_ok=True)  # of a model that was here before
    else:
        write_calibration(folder, calibration)
    write_text(folder / CARD, model_card(info, name, calibration))
    text = json.dumps({"format": FORMAT, "version": 1, **asdict(info)}, indent=1, ensure_ascii=False)
    write_text(folder / CONFIG, text + "\n")
    (folder / CHECKPOINT).unlink(missing_ok=True)  # of the training that made it


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
    path = folder / WEIGHTS
    try:
        state = load(path.read_bytes())
        method = _with_state(kind, config, backbone, info.classes, info.template, state)
    except (OSError, SafetensorError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: does not hold this model's parameters ({why}): fit it again") from None
    return method, info


def copy_method(method: Method) -> Method:
    """Another of the same state, on the same frozen towers."""
    kind, config, backbone = type(method), method.config, method.backbone
    return _with_state(kind, config, backbone, method.classes, method.template, method.state_dict())


def _with_state(
    kind: type[Method],
    config: MethodConfig,
    backbone: Backbone,
    classes: Sequence[str],
    template: str,
    state: Mapping[str, Tensor],
) -> Method:
    method = build_method(kind, config, backbone, seed=0)
    method.prepare(classes, template)  # first: some methods' parameters are one per class
    method.load_state_dict(state)
    return method.to(backbone.device)
