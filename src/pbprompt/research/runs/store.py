"""Results on disk: one JSON line per run, never rewritten, and one file of per-image arrays a run."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load, save

from pbprompt.errors import InputError
from pbprompt.files import append_records, locked, read_records, write_bytes
from pbprompt.research.runs.record import Failure, RunRecord, read_line


class RunStore:
    """A folder of results that any number of processes may add to; a kill loses at most the run it hit.

    The arrays are in place before the line that names them, so a record that can be read is whole.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.lines = self.folder / "records.jsonl"
        self.failed_lines = self.folder / "failures.jsonl"

    def add(self, record: RunRecord, arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Keep a run. A record whose id is there already (two workers did the same) is not added again."""
        if arrays:
            write_bytes(self.arrays_file(record.id), save(dict(arrays)))
        with locked(self.folder):
            if record.id not in self.finished():
                append_records(self.lines, [asdict(record)])

    def fail(self, failure: Failure) -> None:
        """Note that a run failed; it is not finished, and may be tried again."""
        with locked(self.folder):
            append_records(self.failed_lines, [asdict(failure)])

    def records(self) -> list[RunRecord]:
        """All finished runs, in the order they were added."""
        found = (read_line(RunRecord, values, str(self.lines)) for values in read_records(self.lines))
        return list({record.id: record for record in found}.values())

    def failures(self) -> list[Failure]:
        """Runs that failed and have not finished since."""
        done = self.finished()
        lines = read_records(self.failed_lines)
        found = (read_line(Failure, values, str(self.failed_lines)) for values in lines)
        return [failure for failure in found if failure.id not in done]

    def finished(self) -> set[str]:
        """Ids of the finished runs."""
        ids = (record.get("id") for record in read_records(self.lines) if isinstance(record, dict))
        return {identity for identity in ids if isinstance(identity, str)}

    def find(self, identity: str) -> RunRecord:
        """The run whose id starts so."""
        matches = [record for record in self.records() if record.id.startswith(identity)]
        if len(matches) != 1:
            count = len(matches) or "no"
            raise InputError(
                f"{self.folder}: {count} runs have an id that starts with {identity!r}: give one whole"
            )
        return matches[0]

    def arrays(self, identity: str) -> dict[str, NDArray[Any]]:
        """What a run said of each image."""
        path = self.arrays_file(identity)
        if not path.exists():
            raise InputError(f"{path}: the per-image arrays of this run are missing: run it again")
        return load(path.read_bytes())

    def arrays_file(self, identity: str) -> Path:
        """Where they are."""
        return self.folder / "arrays" / f"{identity}.safetensors"
