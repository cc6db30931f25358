"""A tuned classifier as files: a model folder, in a pickle, and on the Hugging Face hub.

The folder is the one that `pbprompt fit` writes; `classifier.json` adds what only this class has: the labels
of y, the number of prompts to sample, and how much images of a class counted (null: one that was not told).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from pbprompt.apps.classifier.tuning import ClassWeight
from pbprompt.errors import InputError, first_line
from pbprompt.model.manifest import CARD, CONFIG, LABELS, PARTS, ModelFiles, opened
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.hub import HUB_PREFIX

FORMAT = "pbprompt-classifier"


def write_folder(
    folder: Path, model: TunedModel, labels: NDArray[Any], name: str, class_weight: ClassWeight = None
) -> None:
    """Write a model folder; `name` is what its card calls it."""
    weight: Any = class_weight
    if isinstance(weight, Mapping):
        given = map(weight.get, labels.tolist())
        weight = [None if one is None else float(one) for one in given]
    own = {"format": FORMAT, "version": 1, "labels": labels.tolist()}
    own |= {"samples": model.samples, "class_weight": weight}
    model.save(folder, name, json.dumps(own, ensure_ascii=False) + "\n")


def read_folder(files: ModelFiles, backbone: Backbone) -> tuple[TunedModel, list[Any], ClassWeight]:
    """A model, its labels and its `class_weight`; without `classifier.json`, labels are the class names."""
    model = TunedModel.load(files, backbone).single_label()
    path, content, classes = files.folder / LABELS, files.part(LABELS), model.info.classes
    if content is None:
        return model, list(classes), None
    try:
        own = json.loads(content)
        labels, samples = own["labels"], own["samples"]
        if own["format"] != FORMAT or own["version"] != 1 or type(samples) is not int or samples < 1:
            raise ValueError("another format")
        kinds = {type(label) for label in labels}
        if len(set(labels)) != len(classes) or len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            raise ValueError(f"no label for each of the {len(classes)} classes")
        weight = own.get("class_weight")
        if isinstance(weight, list):
            pairs = zip(labels, weight, strict=True)
            weight = {label: float(one) for label, one in pairs if one is not None}
        elif weight not in (None, "balanced"):
            raise ValueError(f"class_weight is {weight!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not of this model ({error}): save it again, or remove the file") from None
    return replace(model, samples=samples), labels, weight


def in_memory(model: TunedModel, labels: NDArray[Any]) -> ModelFiles:
    """What `read_folder` takes, for a pickle: no weights of the towers are in it."""
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), model, labels, "model")
        return opened(folder)


def find_folder(source: str, token: str | None = None) -> Path:
    """The folder behind a path or a hub id, downloaded once."""
    path = Path(source).expanduser()
    repository = source.removeprefix(HUB_PREFIX)
    if path.is_dir():
        return path
    if path.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or source.startswith("."):
        raise InputError(f"{source}: no model folder and no hub id: give a folder, or an id such as ORG/NAME")
    from huggingface_hub import snapshot_download

    try:
        files = [CONFIG, CARD, *PARTS]
        return Path(snapshot_download(repository, allow_patterns=files, token=token))
    except Exception as error:  # the network's libraries have errors of many families
        raise InputError(
            f"{source}: no folder here, and the hub gives no model of that id ({first_line(error)}): check "
            "the id, the connection and, where it is private, `hf auth login`"
        ) from None


def upload(folder: str, repository: str, *, private: bool, token: str | None, message: str) -> str:
    """Put a folder's files into a hub repository, made where there is none; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    except Exception as error:  # as above
        raise InputError(
            f"{repository}: not uploaded ({first_line(error)}): check the id and `hf auth login`"
        ) from None
    return str(address)
