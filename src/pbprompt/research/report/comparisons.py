"""Finished runs put side by side: one comparison per task, dataset and backbone; one line per method.

As a table a comparison has every figure of quality.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean
from typing import Any, NamedTuple

from pbprompt.learners.trained import Trained
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.registry import methods
from pbprompt.research.recipes import Recipe
from pbprompt.research.report.render import HTML, cell_text
from pbprompt.research.report.tables import Cell, deviation, ranked
from pbprompt.research.runs import RunConfig, RunRecord
from pbprompt.vision.images.fewshot import shots_in_words


@dataclass(frozen=True)
class Comparison:
    """The runs that can be set side by side, by the method's label and then by shots: one per seed."""

    config: RunConfig  # of one of them: all have its task, dataset, split and targets
    backbone: str
    lines: Mapping[str, Mapping[int, Sequence[RunRecord]]]
    outdated: int  # runs left out, of other code or settings than the newest of their line

    @property
    def title(self) -> str:
        return f"{self.config.task} on {self.config.place}"

    @property
    def heading(self) -> str:
        return f"{self.title[:1].upper()}{self.title[1:]}, {self.backbone}"

    @property
    def shots(self) -> list[int]:
        return sorted({shots for line in self.lines.values() for shots in line})

    def at(self, shots: int) -> dict[str, Sequence[RunRecord]]:
        """The runs of every line that has some with so many shots."""
        return {label: line[shots] for label, line in self.lines.items() if shots in line}

    @property
    def measured(self) -> str:
        """What a run's `score` is, in words."""
        words = {"few-shot": "Accuracy", "base-to-new": "Harmonic mean H"}
        return words.get(self.config.task, "Mean accuracy over the targets")


def make_comparisons(records: Iterable[RunRecord], recipes: Sequence[Recipe] = ()) -> list[Comparison]:
    """Comparisons in the order their first runs were added, with the labels that matching recipes give."""
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        config, backbone = record.config, record.backbone
        key = (config.task, config.place, backbone.name, backbone.fingerprint, *config.targets)
        groups.setdefault(key, []).append(record)
    return [_comparison(group, recipes) for group in groups.values()]


def _comparison(records: Sequence[RunRecord], recipes: Sequence[Recipe]) -> Comparison:
    lines: dict[str, dict[int, list[RunRecord]]] = {}
    for record in records:
        lines.setdefault(record.config.row(), {}).setdefault(record.config.shots, []).append(record)
    newest = {
        label: {shots: _newest(runs) for shots, runs in sorted(line.items())} for label, line in lines.items()
    }
    kept = sum(len(runs) for line in newest.values() for runs in line.values())
    first = {label: next(iter(line.values()))[0] for label, line in newest.items()}
    names = {label: _recipe_label(record, recipes) or label for label, record in first.items()}
    shared = Counter(names.values())  # two lines that recipes call the same keep their long labels
    lines = {names[label] if shared[names[label]] == 1 else label: line for label, line in newest.items()}
    return Comparison(records[0].config, records[0].backbone.name, lines, outdated=len(records) - kept)


def _newest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Of the runs of one cell, those made as the last one was, ordered by seed: others do not average."""
    alike = {run.config.seed: run for run in runs if run.making == runs[-1].making}
    return [alike[seed] for seed in sorted(alike)]


def _recipe_label(record: RunRecord, recipes: Sequence[Recipe]) -> str:
    """The name that the first recipe for this task and backbone gives to this very row, if there is one."""
    config = record.config
    labels = (
        row.label
        for recipe in recipes
        if (recipe.task, recipe.backbone) == (config.task, record.backbone.name)
        for row in recipe.rows
        if recipe.run(row, config.dataset).row() == config.row()
    )
    return next(labels, "")


class Measure(NamedTuple):
    """A figure of a test ("": of the run), how it is printed, and whether more is better (None: neither)."""

    heading: str
    test: str
    metric: str = "accuracy"
    scale: int = 100
    digits: int = 2
    higher: bool | None = True

    @property
    def title(self) -> str:
        arrow = {True: "\N{NO-BREAK SPACE}↑", False: "\N{NO-BREAK SPACE}↓", None: ""}[self.higher]
        return self.heading + arrow

    def _of(self, run: RunRecord) -> float | None:
        return run.figure(self.test, self.metric) if self.test else getattr(run, self.metric)

    def cells(self, lines: Iterable[Sequence[RunRecord]]) -> list[Cell]:
        """One per line, the best of them marked; H is that of the mean accuracies."""
        cells = []
        for runs in lines:
            found = [self.scale * value for run in runs if (value := self._of(run)) is not None]
            mean = fmean(found) if found else nan
            if found and self.test == "H":
                halves = (fmean(run.accuracy(half) for run in runs) for half in ("base", "new"))
                mean = self.scale * harmonic_mean(*halves)
            cells.append(Cell(mean, deviation(found), len(found), self.digits))
        return cells if self.higher is None else ranked(cells, self.higher)


BASE_TO_NEW = (
    Measure("Base %", "base"),
    Measure("New %", "new"),
    Measure("H %", "H"),
    Measure("Joint %", "joint"),
    Measure("ECE base %", "base", "ece", higher=False),
    Measure("ECE new %", "new", "ece", higher=False),
    Measure("New by entropy, AUROC %", "joint", "auroc_entropy"),
    Measure("by mutual information %", "joint", "auroc_mutual_information"),
)
SECONDS = Measure("Seconds per run", "", "seconds", scale=1, digits=1, higher=None)


def _columns(config: RunConfig) -> Sequence[Measure]:
    own = config.dataset
    if config.task == "base-to-new":
        return (*BASE_TO_NEW, SECONDS)
    if config.targets:
        tests = [Measure(f"{name} %", name) for name in (own, *config.targets)]
        return (*tests, Measure("Mean of targets %", "", "score"), SECONDS)
    return (
        Measure("Accuracy %", own),
        Measure("Macro-F1 %", own, "macro_f1"),
        Measure("NLL", own, "nll", scale=1, digits=3, higher=False),
        Measure("Brier", own, "brier", scale=1, digits=3, higher=False),
        Measure("ECE %", own, "ece", higher=False),
        Measure("AURC %", own, "aurc", higher=False),
        SECONDS,
    )


def comparison_table(comparison: Comparison) -> dict[str, Any]:
    """What the page shows: every method's mean ± sample deviation over seeds, grouped by shots."""
    columns = _columns(comparison.config)
    bodies = {}
    for shots in comparison.shots:
        lines = comparison.at(shots)
        cells = zip(*(column.cells(lines.values()) for column in columns), strict=True)
        bodies[shots_in_words(shots)] = [
            [label, str(len(runs)), _epochs(runs[0]), *(cell_text(cell, HTML, cell.seeds) for cell in row)]
            for (label, runs), row in zip(lines.items(), cells, strict=True)
        ]
    return {
        "name": comparison.heading,
        "heads": ["Method", "Seeds", "Epochs", *(column.title for column in columns)],
        "rows": bodies,
        "unequal": len({epochs for rows in bodies.values() for _, _, epochs, *_ in rows}) > 1,
        "outdated": comparison.outdated,
    }


def _epochs(run: RunRecord) -> str:
    """How long the runs of a row trained: one of them tells, since they were made alike."""
    kind = methods().get(run.config.method)
    if kind is not None and not issubclass(kind, Trained) and not run.train:
        return "none"
    return str(run.settings.get("epochs") or "its own")
