"""Which files are a saved model's: its config, written last, names the others by their hashes.

So a reader never takes one model's weights for another's, whenever the saving was killed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import read_text

FORMAT = "pbprompt-model"
CONFIG, WEIGHTS, CARD, CALIBRATION = "config.json", "model.safetensors", "README.md", "calibration.json"
LABELS = "classifier.json"
HASHES = "files"  # the config's key; models of version 1 have none
PARTS = (WEIGHTS, CALIBRATION, LABELS)  # the card is prose, which people may edit


def hashes(contents: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def is_model(folder: Path) -> bool:
    """Whether a saved model is here."""
    return _config(folder).get("format") == FORMAT


def read_part(folder: Path, name: str) -> bytes | None:
    """A file's content, as the config names it; None where it names none."""
    path, named = folder / name, _config(folder).get(HASHES)
    if not isinstance(named, dict):
        return path.read_bytes() if path.is_file() else None
    if name not in named:
        return None
    if not path.is_file():
        raise InputError(f"{path}: missing, but {CONFIG} names it: copy the whole folder, or fit it again")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != named[name]:
        raise InputError(
            f"{path}: does not hold what {CONFIG} names (saving was cut short, or it was changed since): "
            "fit it again"
        )
    return content


def check_replaceable(folder: Path) -> None:
    """Refuse to save over files that no model of ours accounts for."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose a folder")
    if not is_model(folder):
        for name in (CONFIG, CARD, *PARTS):
            if (folder / name).exists():
                raise InputError(
                    f"{folder}: holds a {name} that is no saved model's: choose another folder, or remove it"
                )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        values = json.loads(read_text(path)) if path.is_file() else None
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
