"""What the study costs: runs and training steps of every row, and what is left of them."""

from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.study.parts import Part
from pbprompt.learners.method import Method, build_method, make_config
from pbprompt.registry import find_method
from pbprompt.research.runs.config import RunConfig
from pbprompt.research.runs.record import Record
from pbprompt.research.runs.store import RunStore
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone


class Costs:
    """Training steps by the methods' own schedules, from the draws of the datasets under a root."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self.backbone = load_backbone("lite")
        self.method = cache(self._method)
        self.images = cache(self._images)
        self.dataset = cache(lambda name: open_dataset(name, root))

    def steps(self, run: RunConfig) -> int:
        """Epochs × (images // batch), as the training loop has it, and SHIP's first stage."""
        method = self.method(run.method, run.preset, run.variant, run.overrides)
        if not method.trains:
            return 0
        config: Any = method.config
        images = self.images(run.task, run.dataset, run.shots, run.seed)
        steps = (config.epochs or method.epochs_for(run.shots)) * (images // method.images_a_step(images))
        if run.task in ("base-to-new", "cross-dataset") and method.uses_unseen_names:
            steps += config.synth_epochs * -(-images // config.synth_batch)
        return steps

    def _method(self, name: str, preset: str, variant: str, overrides: tuple[str, ...]) -> Method:
        kind = find_method(name)
        return build_method(kind, make_config(kind, preset, variant, overrides), self.backbone, seed=1)

    def _images(self, task: str, name: str, shots: int, seed: int) -> int:
        few = draw(self.dataset(name), shots, seed).apply(self.dataset(name))
        return len((base_new(few)[0] if task == "base-to-new" else few).train)


def print_plan(parts: list[Part], root: Path | None, store: RunStore | None) -> None:
    """A line per row. Runs that an earlier line had count there alone; with a store, also what is left."""
    costs = Costs(root)
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


def _pace(done: list[Record], steps: dict[RunConfig, int]) -> list[str]:
    if not done:
        return ["", ""]
    seconds = [record.seconds for record in done]
    trained = sum(steps[record.config] for record in done)
    return [f"{fmean(seconds):.1f}", f"{1000 * sum(seconds) / trained:.1f}" if trained else ""]
