"""Finished runs put side by side: one comparison per task, dataset and backbone; one line per method.

As a table a comparison has every figure of quality.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev

from pbprompt.data.fewshot import shots_in_words
from pbprompt.recipes import Recipe
from pbprompt.registry import methods
from pbprompt.report.html_page import table
from pbprompt.report.render import DEVIATION, HTML, NOTHING
from pbprompt.runs.record import Record

UNEQUAL = (
    '<p class="notice" role="note">These methods trained for different numbers of epochs (“its own”: its '
    "schedule by shots; “none”: closed form or untrained): a difference between them is one of method and "
    "training together.</p>"
)


@dataclass(frozen=True)
class Comparison:
    """The runs that can be set side by side, by the method's label and then by shots: one per seed."""

    task: str
    dataset: str
    place: str  # the dataset, and the split where it is not test
    targets: tuple[str, ...]
    backbone: str
    lines: Mapping[str, Mapping[int, Sequence[Record]]]
    outdated: int  # runs left out, of other code or settings than the newest of their line

    @property
    def title(self) -> str:
        return f"{self.task} on {self.place}"

    @property
    def shots(self) -> list[int]:
        return sorted({shots for line in self.lines.values() for shots in line})

    def at(self, shots: int) -> dict[str, Sequence[Record]]:
        """The runs of every line that has some with so many shots."""
        return {label: line[shots] for label, line in self.lines.items() if shots in line}

    @property
    def headline(self) -> str:
        """What a run's `score` is, in words."""
        words = {"few-shot": "Accuracy", "base-to-new": "Harmonic mean H of base and new accuracy"}
        return words.get(self.task, "Mean accuracy over the targets")


def make_comparisons(records: Iterable[Record], recipes: Sequence[Recipe] = ()) -> list[Comparison]:
    """Comparisons in the order their first runs were added, with the labels that matching recipes give."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        config, backbone = record.config, record.backbone
        key = (config.task, config.place, backbone.name, backbone.fingerprint, *config.targets)
        groups.setdefault(key, []).append(record)
    return [_comparison(group, recipes) for group in groups.values()]


def _comparison(records: Sequence[Record], recipes: Sequence[Recipe]) -> Comparison:
    lines: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        lines.setdefault(record.config.row(), {}).setdefault(record.config.shots, []).append(record)
    newest = {
        label: {shots: _newest(runs) for shots, runs in sorted(line.items())} for label, line in lines.items()
    }
    kept = sum(len(runs) for line in newest.values() for runs in line.values())
    first = {label: next(iter(line.values()))[0] for label, line in newest.items()}
    names = {label: _recipe_label(record, recipes) or label for label, record in first.items()}
    shared = Counter(names.values())  # two lines that recipes call the same keep their long labels
    config = records[0].config
    return Comparison(
        task=config.task,
        dataset=config.dataset,
        place=config.place,
        targets=config.targets,
        backbone=records[0].backbone.name,
        lines={names[label] if shared[names[label]] == 1 else label: line for label, line in newest.items()},
        outdated=len(records) - kept,
    )


def _newest(runs: Sequence[Record]) -> list[Record]:
    """Of the runs of one cell, those made as the last one was, ordered by seed: others do not average."""
    alike = {run.config.seed: run for run in runs if run.making == runs[-1].making}
    return [alike[seed] for seed in sorted(alike)]


def _recipe_label(record: Record, recipes: Sequence[Recipe]) -> str:
    """The name that the first recipe for this task and backbone gives to this very row, if there is one."""
    config = record.config
    keys = ("method", "preset", "variant", "samples")
    here = (config.task, record.backbone.name, config.views)
    labels = (
        row.label
        for recipe in recipes
        for row in recipe.rows
        if here == (recipe.task, recipe.backbone, recipe.views)
        and all(getattr(config, key) == getattr(row, key) for key in keys)
        and config.overrides == row.overrides_on(config.dataset)
    )
    return next(labels, "")


@dataclass(frozen=True)
class Column:
    """A figure of a run: where it is, how it is printed, and whether more of it is better (None: neither)."""

    heading: str
    value: Callable[[Record], float | None]
    scale: int = 100
    digits: int = 2
    higher: bool | None = True

    @property
    def title(self) -> str:
        arrow = {True: "\N{NO-BREAK SPACE}↑", False: "\N{NO-BREAK SPACE}↓", None: ""}[self.higher]
        return escape(self.heading) + arrow

    def mean(self, values: Sequence[float]) -> float:
        """As it is printed: what prints alike is equally good."""
        return round(self.scale * fmean(values), self.digits)

    def text(self, values: Sequence[float]) -> str:
        spread = f" ± {self.scale * stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{self.mean(values):.{self.digits}f}{spread}"

    def cells(self, values: Sequence[Sequence[float]]) -> list[str]:
        """One per row, the best of them marked."""
        means = [self.mean(some) for some in values if some]
        marked = len(set(means)) > 1 and self.higher is not None
        best = (max(means) if self.higher else min(means)) if marked else None
        return [
            NOTHING if not some else HTML.ranked(self.text(some), int(self.mean(some) == best))
            for some in values
        ]


def comparison_table(comparison: Comparison) -> str:
    """Every method's figures, mean ± sample deviation over seeds, grouped by shots."""
    columns = _columns(comparison)
    bodies = {shots_in_words(shots): _cells(comparison.at(shots), columns) for shots in comparison.shots}
    caption = f"Mean ± {DEVIATION} over seeds; bold: the best of a column. ↑: higher is better, ↓: lower."
    heads = ["Method", "Seeds", "Epochs", *(column.title for column in columns)]
    shown = table(caption, heads, bodies, kind="cards")
    trained = {_epochs(line[0]) for shots in comparison.shots for line in comparison.at(shots).values()}
    return f"{shown}\n{UNEQUAL}" if len(trained) > 1 else shown


def _columns(comparison: Comparison) -> list[Column]:
    def of(test: str, metric: str) -> Callable[[Record], float | None]:
        return lambda record: record.figure(test, metric)

    time = Column("Seconds per run", lambda record: record.seconds, scale=1, digits=1, higher=None)
    if comparison.task == "base-to-new":
        return [
            Column("Base %", of("base", "accuracy")),
            Column("New %", of("new", "accuracy")),
            Column("H %", of("H", "accuracy")),
            Column("Joint %", of("joint", "accuracy")),
            Column("ECE base %", of("base", "ece"), higher=False),
            Column("ECE new %", of("new", "ece"), higher=False),
            Column("New by entropy, AUROC %", of("joint", "auroc_entropy")),
            Column("by mutual information %", of("joint", "auroc_mutual_information")),
            time,
        ]
    if comparison.targets:
        tests = [
            Column(f"{name} %", of(name, "accuracy")) for name in (comparison.dataset, *comparison.targets)
        ]
        return [*tests, Column("Mean of targets %", lambda record: record.score), time]
    test = comparison.dataset
    return [
        Column("Accuracy %", of(test, "accuracy")),
        Column("Macro-F1 %", of(test, "macro_f1")),
        Column("NLL", of(test, "nll"), scale=1, digits=3, higher=False),
        Column("Brier", of(test, "brier"), scale=1, digits=3, higher=False),
        Column("ECE %", of(test, "ece"), higher=False),
        Column("AURC %", of(test, "aurc"), higher=False),
        time,
    ]


def _cells(lines: dict[str, Sequence[Record]], columns: Sequence[Column]) -> list[list[str]]:
    rows = [[escape(label), str(len(runs)), _epochs(runs[0])] for label, runs in lines.items()]
    for column in columns:
        said = [[column.value(run) for run in runs] for runs in lines.values()]
        cells = column.cells([[value for value in some if value is not None] for some in said])
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return rows


def _epochs(run: Record) -> str:
    """How long the runs of a row trained: one of them tells, since they were made alike."""
    kind = methods().get(run.config.method)
    if kind is not None and not (kind.trains and kind.stepwise) and not run.train:
        return "none"
    return str(run.settings.get("epochs") or "its own")
