"""The paper's own figures as printed, and which of them cannot be right.

A misprint is a mean or an H that does not follow from the figures it is of, or a quantity that two tables
print differently; its test finds them anew. Two more are known from elsewhere.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pbprompt.errors import InputError

AVERAGE = "Average"


@dataclass(frozen=True)
class Figure:
    """One printed number, in % except in the table of costs; `std` where the paper gives one.

    `misprint` says why it cannot be right, if so, and `correct` the right one, where that is known.
    """

    table: str
    task: str
    backbone: str
    dataset: str
    method: str
    shots: int | None
    metric: str
    value: float
    std: float | None
    correct: float | None
    misprint: str

    @property
    def note(self) -> str:
        """A sentence on the misprint."""
        shots = f"{self.shots} shot{'s' * (self.shots != 1)}"
        if self.correct is None:
            return f"{self.method}, {self.metric}, {shots}: {self.misprint}"
        where = f"{self.method}, {self.dataset}, {self.metric}, {shots}"
        return f"{where}: printed {self.value:.2f}, should be {self.correct:.2f}: {self.misprint}"


def tables() -> list[str]:
    """The keys of the paper's tables."""
    return list(dict.fromkeys(figure.table for figure in figures()))


def published(table: str) -> list[Figure]:
    """The figures of one table, as printed."""
    found = [figure for figure in figures() if figure.table == table]
    if not found:
        raise InputError(f"the paper has no table {table!r}: it has {', '.join(tables())}")
    return found


@cache
def figures() -> tuple[Figure, ...]:
    """All figures."""
    text = (files("pbprompt.research.report") / "results.csv").read_text(encoding="utf-8")
    return tuple(map(_read, csv.DictReader(text.splitlines())))


def _read(row: dict[str, Any]) -> Figure:
    numbers = {key: float(row[key]) if row[key] else None for key in ("value", "std", "correct")}
    return Figure(**{**row, **numbers, "shots": int(row["shots"]) if row["shots"] else None})
