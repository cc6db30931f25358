"""What happened in a run, step by step: JSON lines always, TensorBoard where it is installed.

A callback `on_log(record)` gets each line of the log as it is written: `{"step": 40, "total": 0.31, …}`.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pbprompt.files import write_text
from pbprompt.learners.fit_options import OnLog

LOG = "log.jsonl"


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
