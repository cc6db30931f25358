"""Runs: what one was asked, what is kept of it, and the folder that keeps it.

records.jsonl            a line for each finished run, never rewritten
failures.jsonl           a line for each try that failed
arrays/ID.safetensors    what the run said of each image
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray
from safetensors.numpy import load, save

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.files import append_records, locked, read_records, write_bytes
from pbprompt.learners.fit_options import Views
from pbprompt.vision.images.fewshot import shots_in_words

Task = Literal["few-shot", "base-to-new", "cross-dataset", "domain-shift"]
Split = Literal["test", "val"]
Figures = Mapping[str, int | float]
Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run of a table."""

    task: Task
    dataset: str
    method: str = "pbprompt"
    preset: str = "default"
    variant: str = ""
    overrides: tuple[str, ...] = ()
    shots: int = 16
    seed: int = 1
    views: Views = "centre"
    targets: tuple[str, ...] = ()  # what cross-dataset and domain-shift test on besides
    samples: int = 20
    split: Split = "test"  # val: settings are chosen, and no test image is read
    precision: str = "float32"  # of the frozen towers
    temper: bool = False  # probabilities at a temperature that folds of the training images ask for

    @property
    def place(self) -> str:
        """The dataset, and the split where it is not test."""
        return self.dataset if self.split == "test" else f"{self.dataset}, {self.split}"

    def row(self, without: str = "") -> str:
        """The method and what was changed of it: "pbprompt, w/o-S, epochs=30". `without` leaves one out."""

        def changed(*names: str) -> Iterator[tuple[str, Any]]:
            for name in names:
                if name != without and (value := getattr(self, name)) != getattr(RunConfig, name):
                    yield name, value

        words = [self.method, *(value for _, value in changed("preset", "variant"))]
        words += [_shortened(word) for word in self.overrides if word.partition("=")[0] != without]
        words += ["tempered"] * self.temper
        words += [f"{name}={value}" for name, value in changed("views", "samples", "precision")]
        return ", ".join(words)

    def __str__(self) -> str:
        return f"{self.task} on {self.place}: {self.row()}, {shots_in_words(self.shots)}, seed {self.seed}"


def _shortened(word: str) -> str:
    """`key=value`, with a hash for a value that is pages, such as what is said of each class."""
    key, _, value = word.partition("=")
    return word if len(word) < 100 else f"{key}={hashlib.sha256(value.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class DataFacts:
    """Which images: of the whole dataset, and of the draw."""

    name: str
    content_hash: str
    draw: str


@dataclass(frozen=True)
class BackboneFacts:
    """Which weights."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A finished run. `results` are the figures of each test, `train` the last epoch's mean terms."""

    id: str
    config: RunConfig
    settings: Mapping[str, Any]
    data: DataFacts
    backbone: BackboneFacts
    code: str
    library: str = ""
    commit: str = ""
    machine: Mapping[str, str | int] = field(default_factory=dict)
    train: Figures = field(default_factory=dict)
    results: Mapping[str, Figures]
    seconds: float
    finished: str = ""

    def figure(self, test: str, metric: str = "accuracy") -> float | None:
        """A figure of a test; None where the run has none."""
        return self.results.get(test, {}).get(metric)

    def accuracy(self, test: str) -> float:
        """The share of a test's images that was right ("H": the harmonic mean of base and new)."""
        found = self.figure(test)
        if found is None:
            raise InputError(f"run {self.id} has no accuracy of {test!r}: it has {', '.join(self.results)}")
        return found

    @property
    def score(self) -> float:
        """The one figure that tells how good a run is at its task."""
        if self.config.task == "base-to-new":
            return self.accuracy("H")
        return fmean(map(self.accuracy, self.config.targets or (self.config.dataset,)))

    @property
    def headline(self) -> str:
        """The figures that a run is about, in %."""
        if self.config.task == "base-to-new":
            base, new = (100 * self.accuracy(half) for half in ("base", "new"))
            return f"H {100 * self.score:.2f} (base {base:.2f}, new {new:.2f})"
        own = f"{100 * self.accuracy(self.config.dataset):.2f}"
        return f"{own}, targets {100 * self.score:.2f}" if self.config.targets else own

    @property
    def making(self) -> str:
        """Code, settings and data: runs that differ in these do not average."""
        return json.dumps([self.code, dict(self.settings), self.data.content_hash], sort_keys=True)


@dataclass(frozen=True)
class Failure:
    """A run that raised, or whose worker died."""

    id: str
    config: RunConfig
    traceback: str

    @property
    def reason(self) -> str:
        """The last line of the traceback."""
        return (self.traceback.strip() or "no traceback was kept").splitlines()[-1]


def read_line(kind: type[Kept], values: Any, where: str) -> Kept:
    """A record or a failure from a line of JSON; refused in words where a part is missing or misfits."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {str(values)[:40]!r} is no run: remove the line")
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    try:
        return from_dict(kind, {key: value for key, value in values.items() if key in known}, "field")
    except InputError as error:
        problem = str(error).removesuffix(": give it")
        raise InputError(
            f"{where}: run {values.get('id', '(without an id)')}: {problem}: another version wrote it; "
            "remove the line and run it again"
        ) from None


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
            write_bytes(self._arrays_file(record.id), save(dict(arrays)))
        with locked(self.folder):
            if record.id not in self.finished():
                append_records(self.lines, [asdict(record)])

    def fail(self, failure: Failure) -> None:
        """Note that a run failed; it is not finished, and may be tried again."""
        with locked(self.folder):
            append_records(self.failed_lines, [asdict(failure)])

    def records(self) -> list[RunRecord]:
        """All finished runs, in the order they were added."""
        return list({record.id: record for record in _read(RunRecord, self.lines)}.values())

    def failures(self) -> list[Failure]:
        """Runs that failed and have not finished since."""
        done = self.finished()
        return [failure for failure in _read(Failure, self.failed_lines) if failure.id not in done]

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
        path = self._arrays_file(identity)
        if not path.exists():
            raise InputError(f"{path}: the per-image arrays of this run are missing: run it again")
        return load(path.read_bytes())

    def _arrays_file(self, identity: str) -> Path:
        return self.folder / "arrays" / f"{identity}.safetensors"


def _read(kind: type[Kept], file: Path) -> Iterator[Kept]:
    return (read_line(kind, values, str(file)) for values in read_records(file))
