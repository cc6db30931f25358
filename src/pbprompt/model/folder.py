"""A tuned model on disk: settings, learnable parameters, and all that is needed to use and check it again."""

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pbprompt.config import from_dict, to_dict
from pbprompt.distributed import pick
from pbprompt.errors import InputError, first_line
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.temperature import HIGHEST, LOWEST
from pbprompt.files import read_text
from pbprompt.learners.method import Method, build_method
from pbprompt.learners.trained import Trained
from pbprompt.model import manifest
from pbprompt.model.calibration import calibration_text
from pbprompt.model.card import ModelInfo, model_card
from pbprompt.model.manifest import CONFIG, FORMAT, HASHES, WEIGHTS, ModelFiles, hashes, opened
from pbprompt.model.nothing import Nothing
from pbprompt.prompts.loop.checkpoint import CHECKPOINT
from pbprompt.registry import find_method
from pbprompt.vision.images.crops import framing_of
from pbprompt.vision.images.names import other_names, with_names
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.files import check_finite
from pbprompt.vision.towers.loading.hub import EMBEDDED
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.rounding import PRECISIONS

if TYPE_CHECKING:
    from pbprompt.model.tuned import TunedModel

VERSION = 2
Given = Backbone | str | Path | Sequence[str | Path] | None  # towers, or their weights; None: as they were
CLASSES_HASH = "classes_sha256"  # the config's key: the weights are in the order of the names
NOTHING = "nothing."  # before the names of tensors that tell images without content
NAMES = "names"  # likewise: what prompts call classes, where that is not their label


def describe_model(method: Method, **facts: Any) -> ModelInfo:
    """A freshly tuned method, with what else is known, such as its seed and its data."""
    towers = method.given.towers
    about: dict[str, Any] = {"seed": 0, "shots": 0, **facts}
    return ModelInfo(
        method=method.name,
        config=to_dict(method.config),
        classes=method.classes,
        template=method.template,
        backbone=_facts(method.given),
        backbones=tuple(map(_facts, towers)) if len(towers) > 1 else (),
        **about,
    )


def _facts(backbone: Backbone) -> dict[str, str]:
    precision, see = str(backbone.dtype).removeprefix("torch."), backbone.preprocess
    return {
        "name": backbone.config.name,
        "activation": backbone.config.activation,
        "fingerprint": backbone.fingerprint,
        **({} if precision == "float32" else {"precision": precision}),
        **({} if see.fit == backbone.config.images.fit else {"framing": see.fit}),
    }


def save_model(folder: Path, model: "TunedModel", name: str, labels: str | None) -> None:
    """Write the folder, see `TunedModel.save`: until all is on the disk, a former model in it stays."""
    if not (folder / CHECKPOINT).exists():  # a training of ours has looked at the folder already
        manifest.check_replaceable(folder)
    method, info, calibration = model.method, model.info, model.calibration
    texts = {manifest.CALIBRATION: calibration and calibration_text(calibration), manifest.LABELS: labels}
    parts = {WEIGHTS: save(saved_state(model))}
    parts |= {name: text.encode() for name, text in texts.items() if text}
    about = {"format": FORMAT, "version": VERSION, **asdict(info), "data": info.data.to_dict()}
    if not info.backbones:
        del about["backbones"]  # as models are that see by one
    if named := other_names(info.classes):
        about[NAMES] = named
    about |= {CLASSES_HASH: names_hash(info.classes), HASHES: hashes(parts)}
    config = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    card = model_card(
        info,
        name,
        calibration,
        takes_new_names=method.takes_new_names,
        takes_steps=isinstance(method, Trained),
        thresholds=tuple(model.thresholds.values()),
    )
    card_file, config_file = (text.encode("utf-8", "backslashreplace") for text in (card, config))
    manifest.write_model(folder, parts, card_file, config_file)
    (folder / CHECKPOINT).unlink(missing_ok=True)  # of the training that made it


def saved_state(model: "TunedModel") -> dict[str, Tensor]:
    """All that a model answers by, besides its towers and its settings."""
    state = dict(model.method.state_dict() if model.head is None else model.head._asdict())
    if model.nothing is not None:
        state |= {f"{NOTHING}{name}": part for name, part in model.nothing._asdict().items()}
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def read_info(folder: Path | ModelFiles) -> ModelInfo:
    """What the folder says, checked."""
    files = opened(folder)
    path = files.folder / CONFIG
    if not files.config and not path.is_file():
        raise InputError(
            f"{files.folder}: no model here ({CONFIG} is missing): give a folder that `fit` wrote"
        )
    try:
        values = dict(files.config) or json.loads(read_text(path))  # the latter says what is wrong
        if values.pop("format") != FORMAT or values.pop("version") != VERSION:
            raise ValueError("another format")
        values.pop(HASHES, None)
        given_hash = values.pop(CLASSES_HASH, None)
        named = values.pop(NAMES, {})
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ValueError(f"{NAMES} is no object of names")
        info = from_dict(ModelInfo, values, "field")
        info = replace(info, classes=with_names(info.classes, named))
        if any(not {"name", "activation", "fingerprint"} <= set(one) for one in info.towers):
            raise ValueError("the backbone's identity is missing")
        if not LOWEST <= info.temperature <= HIGHEST:
            raise ValueError(f"temperature is {info.temperature}: it must be {LOWEST:g} to {HIGHEST:g}")
        if not info.classes:
            raise ValueError("it has no classes")
        model_card(info, "", thresholds=(0.5,))  # whose figures anybody may have written
        if given_hash != names_hash(info.classes):
            raise ValueError("its class names are not those that it was saved with")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a model of pbprompt ({error}): fit it again") from None
    return info


def names_hash(classes: Sequence[str]) -> str:
    """Of the labels, in their order, and of the names of those that have another."""
    named = other_names(classes)
    return hashlib.sha256(json.dumps([list(classes), named] if named else list(classes)).encode()).hexdigest()


def load_model(
    files: ModelFiles, backbone: Given, device: str | torch.device
) -> tuple[Method, ModelInfo, LabelHead | None, Nothing | None]:
    """The tuned method, prepared for its classes, on the backbone it was tuned on and no other; how it tells
    images without content, if it does.

    That of a multi-label model has no state of its own: a head tells the labels.
    """
    folder, info = files.folder, read_info(files)
    towers = _towers_of(folder, info, backbone, device)
    kind = find_method(info.method)
    try:
        method = build_method(kind, from_dict(kind.Config, info.config), towers, seed=0)
    except InputError as error:  # such as of settings that ask for more blocks than the towers have
        raise InputError(f"{folder / CONFIG}: {error}") from None
    path = folder / WEIGHTS
    try:
        state = load(files.part(WEIGHTS) or b"")
        check_finite(path, state)
        own = {name.removeprefix(NOTHING): state.pop(name) for name in [*state] if name.startswith(NOTHING)}
        nothing = Nothing(**own) if own else None
        if nothing and (nothing.directions.shape[1:], nothing.most.shape) != (nothing.centre.shape, ()):
            raise ValueError(f"{NOTHING}* do not fit each other")
        if not info.multi_label:
            return _with_state(method, info.classes, info.template, state), info, None, nothing
        head, classes = LabelHead(**state), len(info.classes)
        shapes = [(classes, towers.embed_dim), (classes,), (classes,), (classes,)]
        if [tuple(part.shape) for part in head] != shapes:
            raise ValueError(f"not of {classes} labels and {towers.embed_dim} dimensions")
    except InputError:
        raise
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        why = first_line(error)
        raise InputError(f"{path}: does not hold this model's parameters ({why}): fit it again") from None
    method.prepare(info.classes, info.template)
    return method, info, LabelHead(*(part.to(towers.device) for part in head)), nothing


def _towers_of(folder: Path, info: ModelInfo, given: Given, device: str | torch.device) -> Backbone:
    """The frozen towers that a model was tuned on, and no others; loaded where they are not given.

    In the precision that they had, but for float16 on a CPU, which takes longer there than float32.
    """
    named = info.towers
    if isinstance(given, Backbone):
        places: Sequence[Backbone | str | Path] = given.towers
    else:
        places = [given] if isinstance(given, str | Path) else list(given or [one["name"] for one in named])
    if len(places) != len(named):
        raise InputError(
            f"{folder}: tuned on {info.backbone['name']}: give {len(named)}, in this order, not {len(places)}"
        )
    towers = []
    for place, facts in zip(places, named, strict=True):
        dtype = PRECISIONS.get(facts.get("precision", "float32"), torch.float32)
        if dtype == torch.float16 and pick(str(device)) == "cpu":
            dtype = torch.float32
        activation = None if place in EMBEDDED else facts["activation"]
        tower = place
        if not isinstance(tower, Backbone):
            tower = load_backbone(tower, activation=activation, device=device, dtype=dtype)
        if tower.fingerprint != facts["fingerprint"]:
            raise InputError(
                f"{folder}: tuned on {facts['name']} with other weights than these "
                f"({facts['fingerprint'][:12]} ≠ {tower.fingerprint[:12]}): give the same checkpoint"
            )
        towers.append(tower.framed(framing_of(facts.get("framing", ""))))
    if isinstance(given, Backbone) and all(map(operator.is_, given.towers, towers)):
        return given
    return load_backbone(towers)


def copy_method(method: Method) -> Method:
    """Another of the same state, on the same frozen towers."""
    fresh = build_method(type(method), method.config, method.given, seed=0)
    return _with_state(fresh, method.classes, method.template, method.state_dict())


def _with_state(method: Method, classes: Sequence[str], template: str, state: Mapping[str, Tensor]) -> Method:
    method.prepare(classes, template)  # first: some methods' parameters are one per class
    method.load_state_dict(state)
    return method.to(method.given.device)
