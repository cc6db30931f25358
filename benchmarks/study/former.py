"""Rows that were not run again, from a former summary of the study: their figures, without intervals.

An interval pairs what two runs say of each image, and a summary no longer has that. A row is taken over where
its method is of the same revision, its settings are the recipe's, and data and weights are the same.
"""

from collections.abc import Mapping
from typing import Any

from pbprompt.errors import InputError
from pbprompt.registry import find_method
from pbprompt.research.runs.provenance import code_revision

NOT_RUN_AGAIN = "not run again: figures of former runs, without intervals (†)"
Study = Mapping[str, Any]


def with_former(study: Study, former: Study) -> dict[str, Any]:
    """The study with the former's figures in rows without any run, each less the first row's own."""
    for what in ("backbone", "data"):
        before = dict(fact.rsplit(" ", 1) for fact in former["identity"][what])
        now = dict(fact.rsplit(" ", 1) for fact in study["identity"][what])
        if strange := [name for name in now if now[name] != before.get(name, now[name])]:
            raise InputError(f"the former summary has another {what}: {strange[0]} was {before[strange[0]]}")
    taken, parts = [], {}
    for name, part in study["parts"].items():
        before = former["parts"].get(name, {"rows": {}, "cells": {}})
        keys = [", ".join(filter(None, column)) for column in part["columns"]]
        cells, missing = dict(part["cells"]), dict(part["missing"])
        own = cells.get(next(iter(part["rows"])), {})
        for row, method in part["rows"].items():
            same = before["rows"].get(row) == method and _same_code(method, former)
            if row in cells or not same or row not in before["cells"]:
                continue
            cells[row] = {
                key: _compared(before["cells"][row][key], own.get(key, {}))
                for key in keys
                if key in before["cells"][row]
            }
            missing[row] = [NOT_RUN_AGAIN]
            taken.append(f"{name}: {row}")
        order = [row for row in part["rows"] if row in cells]
        parts[name] = {**part, "cells": {row: cells[row] for row in order}, "missing": missing}
    kept = {what: former["identity"][what] for what in ("commits", "machines", "finished")}
    return {**study, "parts": parts, "identity": {**study["identity"], "former": {**kept, "rows": taken}}}


def _same_code(method: str, former: Study) -> bool:
    revision = f"{method}: {code_revision(find_method(method))}"
    return any(code.partition(", code ")[0] == revision for code in former["identity"]["code"])


def _compared(cell: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """[mean, std, the first row's mean less this one] of each metric."""
    figures: dict[str, Any] = {"seeds": cell["seeds"], "former": True}
    for metric, figure in cell.items():
        if metric != "seeds":
            lead = [round(first[metric][0] - figure[0], 4)] if metric in first else []
            figures[metric] = [*figure[:2], *lead]
    return figures
