"""The paper's own figures, as printed; `misprints` says which of them cannot be right."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pbprompt.errors import InputError

BACKBONES = ("ViT-B/16", "RN50")  # what the paper measured on: nothing else may be set beside its figures
AVERAGE = "Average"


@dataclass(frozen=True)
class Figure:
    """One printed number, in % except in the table of costs; `std` where the paper gives one."""

    table: str
    task: str
    backbone: str
    dataset: str
    method: str
    shots: int | None
    metric: str
    value: float
    std: float | None


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
    text = (files("pbprompt.report") / "results.csv").read_text(encoding="utf-8")
    return tuple(
        Figure(
            row["table"],
            row["task"],
            row["backbone"],
            row["dataset"],
            row["method"],
            int(row["shots"]) if row["shots"] else None,
            row["metric"],
            float(row["value"]),
            float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )
