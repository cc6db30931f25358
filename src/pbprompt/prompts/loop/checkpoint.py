"""What training keeps in a folder: where it stands, and a log of what happened.

The checkpoint is parameters, optimiser and step, in one safetensors file that is replaced whole. The log is
JSON lines, and TensorBoard where it is installed; a callback `on_log(record)` gets each line as it is
written: `{"step": 40, "total": 0.31, …}`.
"""

import json
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.files import write_bytes, write_text
from pbprompt.learners.fit_options import OnLog
from pbprompt.learners.trained import Trained
from pbprompt.vision.towers.loading.files import check_finite

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
UNREADABLE = (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError)


@dataclass
class Tally:
    """Terms of the epoch under way: their sums so far, and those of the steps not yet in the log."""

    steps: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    recent: list[dict[str, float]] = field(default_factory=list)


def write_checkpoint(
    path: Path, method: Trained, optimiser: torch.optim.Optimizer, step: int, run: str, tally: Tally
) -> None:
    """Save after `step` steps; `run` names what is being trained, `tally` is the log so far."""
    tensors = {f"parameters/{name}": value for name, value in method.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser/{index}/{key}"] = value
    tensors = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    about = json.dumps({"step": step, "run": run, "tally": asdict(tally)})
    write_bytes(path, save(tensors, {"pbprompt": about}))


def read_checkpoint(
    path: Path, method: Trained, optimiser: torch.optim.Optimizer, run: str
) -> tuple[int, Tally]:
    """Continue where the file stands; returns its step and tally. A checkpoint of another run is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["pbprompt"])
            step, tally, own = int(about["step"]), Tally(**about["tally"]), about["run"]
            # copied out of the mapped file, which the next checkpoint replaces
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    except UNREADABLE as error:
        raise InputError(f"{path}: not a usable checkpoint ({error}): remove it to start anew") from None
    if own != run:
        raise InputError(
            f"{path}: belongs to another run (other data, settings or seed): choose another folder"
        )
    check_finite(path, tensors)
    parameters: dict[str, Tensor] = {}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "optimiser":
            index, _, name = name.partition("/")
            state.setdefault(int(index), {})[name] = value
        else:
            parameters[name] = value
    try:
        method.load_state_dict(parameters)
    except RuntimeError:
        raise InputError(
            f"{path}: not a usable checkpoint (other parameters than this method's): remove it to start anew"
        ) from None
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return step, tally


def checkpoint_step(folder: Path) -> int | None:
    """The step that a run in this folder goes on from; None where it would start anew."""
    try:
        with safe_open(folder / CHECKPOINT, framework="pt") as file:
            return int(json.loads((file.metadata() or {})["pbprompt"])["step"])
    except UNREADABLE:
        return None


class Journal:
    """Appends one line a record to `log.jsonl`; lines past `step` (of a run that was killed) are dropped."""

    def __init__(self, folder: Path | None, step: int = 0, on_log: OnLog | None = None) -> None:
        self._file, self._on_log = None, on_log
        self._board: Any = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOG
        write_text(path, "".join(_lines_until(path, step)))
        self._file = path.open("a", encoding="utf-8")
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, step: int, values: dict[str, float]) -> None:
        if self._on_log is not None:
            self._on_log({"step": step, **values})
        if self._file is not None:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        for sink in (self._file, self._board):
            if sink is not None:
                sink.close()


def _lines_until(path: Path, step: int) -> list[str]:
    if not path.exists():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):  # a line the kill cut short
            continue
    return kept
