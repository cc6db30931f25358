"""A tuned classifier as files: a model folder, in a pickle, and on the Hugging Face hub.

The folder is the one that `pbprompt fit` writes; `classifier.json` adds what only this class has: the labels
of y and the number of prompts to sample.
"""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.loading.hub import HUB_PREFIX
from pbprompt.errors import InputError
from pbprompt.files import read_text, write_text
from pbprompt.methods.base import Method
from pbprompt.model.calibration import CALIBRATION, Calibration, read_calibration, write_calibration
from pbprompt.model.card import model_card
from pbprompt.model.folder import CARD, CONFIG, WEIGHTS, ModelInfo, load_model, save_model
from pbprompt.model.predictor import SAMPLES

OWN = "classifier.json"
FORMAT = "pbprompt-classifier"


class Tuned(NamedTuple):
    """What `fit` made: a method, the label of each of its classes in its order, and their records."""

    method: Method
    labels: NDArray[Any]
    info: ModelInfo
    calibration: Calibration | None
    samples: int


def write_folder(folder: Path, tuned: Tuned, name: str) -> None:
    """Write a model folder; `name` is what its card calls it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose a folder")
    own = {"format": FORMAT, "version": 1, "labels": tuned.labels.tolist(), "samples": tuned.samples}
    write_text(folder / OWN, json.dumps(own, ensure_ascii=False) + "\n")
    if tuned.calibration is None:
        (folder / CALIBRATION).unlink(missing_ok=True)  # of a model that was here before
    else:
        write_calibration(folder, tuned.calibration)
    save_model(folder, tuned.method, tuned.info, model_card(tuned.info, name, tuned.calibration))


def read_folder(folder: Path, backbone: Backbone) -> Tuned:
    """A model folder, whoever wrote it: `pbprompt fit` leaves the labels to be the class names."""
    method, info = load_model(folder, backbone)
    labels, samples = _read_own(folder / OWN, info)
    return Tuned(method, np.array(labels), info, read_calibration(folder), samples)


def _read_own(path: Path, info: ModelInfo) -> tuple[list[Any], int]:
    if not path.exists():
        return list(info.classes), SAMPLES
    try:
        own = json.loads(read_text(path))
        labels, samples = own["labels"], own["samples"]
        if own["format"] != FORMAT or own["version"] != 1 or type(samples) is not int or samples < 1:
            raise ValueError("another format")
        kinds = {type(label) for label in labels}
        if len(set(labels)) != len(info.classes) or len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            raise ValueError(f"no label for each of the {len(info.classes)} classes")
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not of this model ({error}): save it again, or remove the file") from None
    return labels, samples


def to_files(tuned: Tuned) -> dict[str, bytes]:
    """The folder's files in memory: no weights of the towers are in them."""
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), tuned, "model")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def from_files(files: dict[str, bytes], backbone: Backbone) -> Tuned:
    """What `to_files` kept."""
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return read_folder(Path(folder), backbone)


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
        files = [CONFIG, WEIGHTS, CARD, CALIBRATION, OWN]
        return Path(snapshot_download(repository, allow_patterns=files, token=token))
    except Exception as error:  # the network's libraries have errors of many families
        raise InputError(
            f"{source}: no folder here, and the hub gives no model of that id ({_why(error)}): check the id, "
            "the connection and, where it is private, `hf auth login`"
        ) from None


def upload(tuned: Tuned, repository: str, *, private: bool, token: str | None, message: str) -> str:
    """Put the folder's files into a hub repository, made where there is none; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), tuned, repository.split("/")[-1])
        try:
            address = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
        except Exception as error:  # as above
            raise InputError(
                f"{repository}: not uploaded ({_why(error)}): check the id and `hf auth login`"
            ) from None
    return str(address)


def _why(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
