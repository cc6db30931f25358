"""What the study costs: runs and training steps of every row, and what is left of them."""

from pathlib import Path
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.study.parts import Part
from pbprompt.research.costs import DryRun
from pbprompt.research.runs import RunConfig, RunRecord, RunStore


def print_plan(parts: list[Part], root: Path | None, store: RunStore | None) -> None:
    """A line per row. Runs that an earlier line had count there alone; with a store, also what is left."""
    costs = DryRun("lite", root)
    records = {record.config: record for record in store.records()} if store else {}
    seen: set[RunConfig] = set()
    columns = ("part", "row", "runs", "steps", "steps, most in a run")
    left = ("runs left", "steps left", "seconds per run", "ms per step") if store else ()
    table = Table(*columns, *left, box=box.SIMPLE)
    for column in table.columns[2:]:
        column.justify = "right"
    totals = [0, 0, 0, 0]
    for part in parts:
        by_row: dict[str, list[RunConfig]] = {row.label: [] for row in part.rows}
        for config, label in part.expand().items():
            if config not in seen:
                by_row[label].append(config)
        seen |= part.expand().keys()
        for number, (label, runs) in enumerate(by_row.items()):
            steps = {run: costs.steps(run) for run in runs}
            done = [records[run] for run in runs if run in records]
            missing = [run for run in runs if run not in records]
            remaining = sum(steps[run] for run in missing)
            cells = [f"{len(runs):,}", f"{sum(steps.values()):,}", f"{max(steps.values(), default=0):,}"]
            if store:
                cells += [f"{len(missing):,}", f"{remaining:,}", *_pace(done, steps)]
            table.add_row(part.name if not number else "", label, *cells)
            counted = (len(runs), sum(steps.values()), len(missing), remaining)
            totals = [total + more for total, more in zip(totals, counted, strict=True)]
        table.add_section()
    shown = [f"{total:,}" for total in totals]
    table.add_row("all", "", *shown[:2], "", *(shown[2:] if store else ()))
    Console(width=150).print(table)


def _pace(done: list[RunRecord], steps: dict[RunConfig, int]) -> list[str]:
    if not done:
        return ["", ""]
    seconds = [record.seconds for record in done]
    trained = sum(steps[record.config] for record in done)
    return [f"{fmean(seconds):.1f}", f"{1000 * sum(seconds) / trained:.1f}" if trained else ""]
