"""Finished runs put side by side: one comparison per task, dataset and backbone; one line per method."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pbprompt.recipes import Recipe
from pbprompt.runs.record import Record


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
