"""Finished runs put side by side: one comparison a task, dataset and backbone; one line a method."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from pbprompt.errors import InputError
from pbprompt.recipes import Recipe
from pbprompt.runs.store import Record
from pbprompt.runs.tasks import RunConfig

_DEFAULTS = {field.name: field.default for field in fields(RunConfig)}


@dataclass(frozen=True)
class Comparison:
    """The runs that can be set side by side, by the method's label and then by shots: one a seed."""

    task: str
    dataset: str
    targets: tuple[str, ...]
    backbone: str
    lines: Mapping[str, Mapping[int, Sequence[Record]]]
    outdated: int  # runs left out, of other code or settings than the newest of their line

    @property
    def title(self) -> str:
        return f"{self.task} on {self.dataset}"

    @property
    def shots(self) -> list[int]:
        return sorted({shots for line in self.lines.values() for shots in line})

    def at(self, shots: int) -> dict[str, Sequence[Record]]:
        """The runs of every line that has some with so many shots."""
        return {label: line[shots] for label, line in self.lines.items() if shots in line}

    @property
    def headline(self) -> str:
        """What `score` is, in words."""
        words = {"few-shot": "Accuracy", "base-to-new": "Harmonic mean H of base and new accuracy"}
        return words.get(self.task, "Mean accuracy over the targets")

    def score(self, record: Record) -> float:
        """The one figure that tells how good a run is at its task."""
        if self.task == "base-to-new":
            return float(record["results"]["H"]["accuracy"])
        names = self.targets or (self.dataset,)
        return fmean(record["results"][name]["accuracy"] for name in names)


def make_comparisons(records: Iterable[Record], recipes: Sequence[Recipe] = ()) -> list[Comparison]:
    """Comparisons in the order their first runs were added, with the labels that matching recipes give."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        check(record)
        config, backbone = record["config"], record["backbone"]
        key = (config["task"], config["dataset"], backbone["name"], backbone["fingerprint"])
        groups.setdefault((*key, *config["targets"]), []).append(record)
    return [_comparison(group, recipes) for group in groups.values()]


def run_label(config: Record, without: str = "") -> str:
    """A run's method and what was changed of it: "pbprompt, w/o-S, epochs=30". `without` leaves one out."""
    words = [config["method"]]
    words += [config[key] for key in ("preset", "variant") if config[key] != _DEFAULTS[key]]
    words += [word for word in config["overrides"] if word.partition("=")[0] != without]
    changed = [key for key in ("views", "samples") if config[key] != _DEFAULTS[key] and key != without]
    return ", ".join([*words, *(f"{key}={config[key]}" for key in changed)])


def check(record: Record) -> None:
    """Refuse a record that this version cannot read."""
    for key in ("id", "config", "settings", "backbone", "code", "results", "seconds"):
        if key not in record:
            raise InputError(
                f"records.jsonl: {key} is missing in run {record.get('id', '(without an id)')}: "
                "another version wrote it; remove the line and run it again"
            )


def _comparison(records: Sequence[Record], recipes: Sequence[Recipe]) -> Comparison:
    lines: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        config = record["config"]
        lines.setdefault(run_label(config), {}).setdefault(config["shots"], []).append(record)
    newest = {
        label: {shots: _newest(runs) for shots, runs in sorted(line.items())} for label, line in lines.items()
    }
    kept = sum(len(runs) for line in newest.values() for runs in line.values())
    first = {label: next(iter(line.values()))[0] for label, line in newest.items()}
    names = {label: _recipe_label(record, recipes) or label for label, record in first.items()}
    shared = Counter(names.values())  # two lines that recipes call the same keep their long labels
    config = records[0]["config"]
    return Comparison(
        task=config["task"],
        dataset=config["dataset"],
        targets=tuple(config["targets"]),
        backbone=records[0]["backbone"]["name"],
        lines={names[label] if shared[names[label]] == 1 else label: line for label, line in newest.items()},
        outdated=len(records) - kept,
    )


def _newest(runs: Sequence[Record]) -> list[Record]:
    """Of the runs of one cell, those made as the last one was, ordered by seed: others do not average."""

    def made(record: Record) -> str:
        data = record.get("data", {}).get("content_hash")
        return json.dumps([record["code"], record["settings"], data], sort_keys=True)

    alike = {run["config"]["seed"]: run for run in runs if made(run) == made(runs[-1])}
    return [alike[seed] for seed in sorted(alike)]


def _recipe_label(record: Record, recipes: Sequence[Recipe]) -> str:
    """The name that the first recipe for this task and backbone gives to this very row, if there is one."""
    config = record["config"]
    keys = ("method", "preset", "variant", "samples")
    here = (config["task"], record["backbone"]["name"], config["views"])
    labels = (
        row.label
        for recipe in recipes
        for row in recipe.rows
        if here == (recipe.task, recipe.backbone, recipe.views)
        and all(config[key] == getattr(row, key) for key in keys)
        and tuple(config["overrides"]) == row.overrides
    )
    return next(labels, "")
