"""What is kept of a run: what it was asked, what it rests on, what it measured. One JSON line each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any, TypeVar

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.research.runs.config import RunConfig

Figures = Mapping[str, int | float]
T = TypeVar("T")


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


def read_line(kind: type[T], values: Any, where: str) -> T:
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
