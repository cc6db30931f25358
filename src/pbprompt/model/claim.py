"""The folder that a training writes into: nobody else's files are in it, and no other training's."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.files import try_lock
from pbprompt.model.manifest import CALIBRATION, CARD, CONFIG, WEIGHTS, is_model
from pbprompt.train.checkpoint import CHECKPOINT
from pbprompt.train.journal import LOG

CLAIM = ".pbprompt-fit"  # in a folder from the first file of a training until its model is whole
OURS = {
    CLAIM,
    CHECKPOINT,
    WEIGHTS,
    CALIBRATION,
    CARD,
    "draw.jsonl",
    "last-good.safetensors",
    LOG,
    "tensorboard",
}


def check_free(folder: Path) -> None:
    """Refuse a folder that holds a model, or anything that no training of ours left."""
    if is_model(folder):
        raise InputError(f"{folder}: holds a finished model: choose another folder or remove it")
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
