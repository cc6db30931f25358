"""Results on disk: one JSON line a run, never rewritten, and one file of per-image arrays a run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load, save

from pbprompt.errors import InputError
from pbprompt.files import append_records, locked, read_records, write_bytes

Record = dict[str, Any]


class RunStore:
    """A folder of results that any number of processes may add to; a kill loses at most the run it hit.

    The arrays are in place before the line that names them, so a record that can be read is whole.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def add(self, record: Record, arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Keep a run. A record whose id is there already (two workers did the same) is not added again."""
        if arrays:
            write_bytes(self._arrays(record["id"]), save(dict(arrays)))
        with locked(self.folder):
            if record["id"] not in self.finished():
                append_records(self.folder / "records.jsonl", [record])

    def fail(self, identity: str, config: Record, traceback: str) -> None:
        """Note that a run failed; it is not finished, and may be tried again."""
        with locked(self.folder):
            append_records(
                self.folder / "failures.jsonl", [{"id": identity, "config": config, "traceback": traceback}]
            )

    def records(self) -> list[Record]:
        """All finished runs, in the order they were added."""
        return list({record["id"]: record for record in read_records(self.folder / "records.jsonl")}.values())

    def failures(self) -> list[Record]:
        """Runs that failed and have not finished since."""
        done = self.finished()
        return [record for record in read_records(self.folder / "failures.jsonl") if record["id"] not in done]

    def finished(self) -> set[str]:
        """Ids of the finished runs."""
        return {record["id"] for record in read_records(self.folder / "records.jsonl")}

    def find(self, identity: str) -> Record:
        """The run whose id starts so."""
        matches = [record for record in self.records() if record["id"].startswith(identity)]
        if len(matches) != 1:
            count = len(matches) or "no"
            raise InputError(
                f"{self.folder}: {count} runs have an id that starts with {identity!r}: give one whole"
            )
        return matches[0]

    def arrays(self, identity: str) -> dict[str, NDArray[Any]]:
        """What a run said of each image."""
        path = self._arrays(identity)
        if not path.exists():
            raise InputError(f"{path}: the per-image arrays of this run are missing: run it again")
        return load(path.read_bytes())

    def _arrays(self, identity: str) -> Path:
        return self.folder / "arrays" / f"{identity}.safetensors"
