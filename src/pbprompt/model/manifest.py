"""Which files are a saved model's: its config names the others by their hashes, and its rename is the moment
at which a new model takes the place of a former one.

    1. the new files, under hidden names with their hashes      a reader finds the former model
    2. config.json                                              from here on the new one
    3. the new files get their own names

Where the saving was killed after the second step, a reader finds what the config names under hidden names.
A training that writes into a folder over time claims it first: nobody else's files are in it, and no other
training's.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import held, try_lock, write_files
from pbprompt.prompts.loop.checkpoint import CHECKPOINT, LOG

FORMAT = "pbprompt-model"
CONFIG, WEIGHTS, CARD, CALIBRATION = "config.json", "model.safetensors", "README.md", "calibration.json"
LABELS = "classifier.json"
HASHES = "files"  # the config's key
READ_TRIES = 10
PARTS = (WEIGHTS, CALIBRATION, LABELS)  # the card is prose, which people may edit
CLAIM = ".pbprompt-fit"  # in a folder from the first file of a training until its model is whole
OURS = {CLAIM, CHECKPOINT, WEIGHTS, CALIBRATION, CARD, LOG}
OURS |= {"draw.jsonl", "last-good.safetensors", "tensorboard"}


def hashes(contents: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 of each file."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@dataclass(frozen=True)
class ModelFiles:
    """What was read of one model: its config, and those of its files that are what the config names."""

    folder: Path
    config: Mapping[str, Any]
    contents: Mapping[str, bytes]

    def part(self, name: str) -> bytes | None:
        """A file's content; None where the model has no such file."""
        if name in self.contents:
            return self.contents[name]
        if name not in (self.config.get(HASHES) or ()):
            return None
        path = self.folder / name
        if not path.is_file():
            raise InputError(
                f"{path}: missing, but {CONFIG} names it: copy the whole folder, or fit it again"
            )
        raise InputError(f"{path}: does not hold what {CONFIG} names (it was changed since): fit it again")


def opened(source: str | Path | ModelFiles) -> ModelFiles:
    """The files of one model, even while another takes its place; what was read already stays as it is."""
    if isinstance(source, ModelFiles):
        return source
    folder = Path(source)
    for _ in range(READ_TRIES):
        before = _content(folder / CONFIG)
        config = _config(before)
        named = config.get(HASHES)
        parts = {name: _part(folder, name, named) for name in PARTS} if isinstance(named, dict) else {}
        files = ModelFiles(folder, config, {name: part for name, part in parts.items() if part is not None})
        if _content(folder / CONFIG) == before:
            break
    return files


def write_model(folder: Path, parts: Mapping[str, bytes], card: bytes, config: bytes) -> None:
    """Let a model take the place of a former one, or of none; see above. `config` has the parts' hashes."""
    staged = {_staged(name, digest): name for name, digest in hashes(parts).items()}
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        try:
            write_files(folder, {hidden: parts[name] for hidden, name in staged.items()})
            write_files(folder, {CONFIG: config})
        finally:
            if _content(folder / CONFIG) != config:
                _remove(folder, staged)
        for hidden, name in staged.items():
            (folder / hidden).replace(folder / name)
        write_files(folder, {CARD: card})
        left = [path.name for name in (CONFIG, CARD, *PARTS) for path in folder.glob(f".{name}.*")]
        _remove(folder, [*left, *(set(PARTS) - set(parts))])  # of killed saves, and of the former model


def is_model(folder: Path) -> bool:
    """Whether a saved model is here."""
    return _config(_content(folder / CONFIG)).get("format") == FORMAT


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


def check_free(folder: Path) -> None:
    """Refuse a folder that holds a model, or anything that no training of ours left."""
    if is_model(folder):
        raise InputError(
            f"{folder}: holds a finished model: choose another folder, or renew it by `pbprompt model`"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose a folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names & {CLAIM, CHECKPOINT}:  # begun by us: hidden ones are files that were being written
        names = {name for name in names - OURS if not name.startswith(".")}
    if names:
        raise InputError(
            f"{folder}: holds {min(names)}, which is of no training: choose an empty or a new folder"
        )


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Hold a folder for one training; what was left there by one that was stopped is its own."""
    check_free(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / CLAIM
    with mark.open("ab") as file:
        if not try_lock(file):
            raise InputError(f"{folder}: another training writes into it now: choose another folder")
        try:
            check_free(folder)  # again: it may have become a model meanwhile
            yield
        finally:
            left = {path.name for path in folder.iterdir()}
            if CONFIG in left or left == {CLAIM}:  # whole, or never begun
                mark.unlink(missing_ok=True)
            if made and left == {CLAIM}:
                folder.rmdir()


def _staged(name: str, digest: str) -> str:
    return f".{name}.{digest[:32]}"


def _part(folder: Path, name: str, named: Mapping[str, Any]) -> bytes | None:
    """A file as the config names it, under its own name or still under its hidden one."""
    digest = named.get(name)
    if not isinstance(digest, str):
        return None
    for place in (name, _staged(name, digest), name):  # it may get its own name just now
        content = _content(folder / place)
        if content is not None and hashlib.sha256(content).hexdigest() == digest:
            return content
    return None


def _content(path: Path) -> bytes | None:
    with contextlib.suppress(OSError, ValueError):  # such as a hash that is none
        return path.read_bytes() if path.is_file() else None
    return None


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _config(content: bytes | None) -> dict[str, Any]:
    try:
        values = json.loads(content or b"")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
