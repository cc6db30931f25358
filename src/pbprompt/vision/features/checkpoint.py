"""How far a pass over a stream is, on the disk: what a kill loses is the last ten seconds.

    .model.gathered/          beside the model's folder, until the model is written
        0.safetensors         what the first process has gathered; each of several has a file of its own

A file is replaced whole and has a hash. It names its job, and another job's is refused: it may hold hours of
work.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.files import write_bytes
from pbprompt.vision.towers.loading.files import check_finite

VERSION = 1  # of what is in a file
SAVE_EVERY = 10.0  # seconds between two of them
SPARED = 20  # of the time, at most one part in so many is spent on writing

State = tuple[Mapping[str, Tensor], dict[str, Any]]  # tensors, and what JSON can say


class Checkpoint:
    """Of one process of a job, which `job` tells from others, as JSON has it."""

    def __init__(self, folder: Path, job: Mapping[str, Any], process: int = 0) -> None:
        self.folder, self.path = folder, folder / f"{process}.safetensors"
        self.job = json.loads(json.dumps({"version": VERSION, **job}))
        self._due = time.monotonic() + SAVE_EVERY

    def read(self) -> State | None:
        """What was gathered before this process, None where nothing was; another job's is refused."""
        for path in sorted(self.folder.glob("*.safetensors")):  # those of the other processes too
            former = _about(path).get("job")
            former = former if isinstance(former, dict) else {}
            if other := [key for key in {**former, **self.job} if former.get(key) != self.job.get(key)]:
                raise InputError(
                    f"{self.folder}: holds what another fit has gathered (other {', '.join(other)}): choose "
                    "another folder for the model, or remove it"
                )
        self._remove_torn()
        if not self.path.exists():
            return None
        facts = _about(self.path)
        try:
            with safe_open(self.path, framework="pt") as file:
                # copied out of the mapped file, which the next one replaces
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, RuntimeError, OSError, ValueError) as error:
            raise unusable(self.path, error) from None
        if facts.pop("sha256", None) != _digest(tensors, facts):
            raise unusable(self.path, "its bytes have changed since they were written")
        check_finite(self.path, tensors)
        return tensors, facts

    def write(self, state: State) -> None:
        started = time.monotonic()
        tensors, facts = state
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        about = json.loads(json.dumps({**facts, "job": self.job}))  # as it is read back
        about["sha256"] = _digest(plain, about)
        write_bytes(self.path, save(plain, {"pbprompt": json.dumps(about)}))
        ended = time.monotonic()
        self._due = ended + max(SAVE_EVERY, SPARED * (ended - started))

    def write_if_due(self, state: Callable[[], State]) -> None:
        if time.monotonic() >= self._due:
            self.write(state())

    def remove(self) -> None:
        """Nobody needs it any more; the folder goes with the last."""
        self._remove_torn()
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of other processes, or never made
            self.folder.rmdir()

    def _remove_torn(self) -> None:
        """What a kill left under another name."""
        for path in self.folder.glob(f".{self.path.name}.*"):
            path.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for key, value in sorted(tensors.items()):
        digest.update(json.dumps([key, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _about(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["pbprompt"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise unusable(path, error) from None
    return about if isinstance(about, dict) else {}


def unusable(path: Path, why: object) -> InputError:
    return InputError(f"{path}: not what a fit has gathered ({why}): remove it to start anew")
