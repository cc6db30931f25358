"""A table or figure as a grid of runs: YAML files beside this one, or a user's own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, suggest
from pbprompt.learners.fit_options import Views
from pbprompt.research.recipes.reading import check_positive, is_file, listed, names_in, parsed, read, words
from pbprompt.research.runs import RunConfig, Split, Task
from pbprompt.vision.images.names import read_descriptions
from pbprompt.vision.towers.rounding import PRECISIONS


@dataclass(frozen=True)
class MethodRow:
    """One method of a table, under the name the table gives it; `published` is the paper's name for it.

    `by_dataset` holds settings for single datasets, where a figure was made with others there; `precision` is
    that of the towers, as its authors have it; `temper`: the probabilities are scaled by a temperature that
    five folds of the training images ask for.
    """

    label: str
    method: str
    preset: str = "default"
    variant: str = ""
    overrides: tuple[str, ...] = ()
    samples: int = 20
    precision: str = "float32"
    temper: bool = False
    published: str = ""
    by_dataset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", _ordered(self.overrides))

    def overrides_on(self, dataset: str) -> tuple[str, ...]:
        """The settings that are changed in a run on this dataset."""
        return _ordered((*self.overrides, *self.by_dataset.get(dataset, ())))

    def changed(self, words: Sequence[str]) -> "MethodRow":
        """The row with more settings changed, on every dataset."""
        own = {dataset: (*some, *words) for dataset, some in self.by_dataset.items()}
        return replace(self, overrides=(*self.overrides, *words), by_dataset=own)


@dataclass(frozen=True)
class Recipe:
    """What to run for one table; the first row is the one that the others are compared with.

    `published` names the paper's tables that its figures belong beside, `views` what is trained on: the
    centre crop, fresh augmented views (the field's protocol), or a number of them. What is `apart` among the
    datasets or targets is shown, but not averaged in. On the `split` val settings are chosen: its figures are
    no results.
    """

    name: str
    title: str
    task: Task
    backbone: str
    datasets: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    shots: tuple[int, ...] = (16,)
    seeds: tuple[int, ...] = (1, 2, 3)
    targets: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    views: Views = "centre"
    split: Split = "test"
    published: tuple[str, ...] = ()
    note: str = ""

    def narrowed(
        self,
        datasets: Sequence[str] = (),
        shots: Sequence[int] = (),
        seeds: Sequence[int] = (),
        overrides: Sequence[str] = (),
        precision: str = "",
    ) -> "Recipe":
        """The part of the table with these datasets, shots and seeds, as a table of its own; empty: all.

        A dataset may be one's own; `overrides` are `key=value` settings of every row, and `precision` its.
        """
        other = any(name not in self.datasets for name in datasets)  # which the title does not speak of
        return replace(
            self,
            title=f"{self.title}; here on {', '.join(datasets)}" if other else self.title,
            datasets=tuple(datasets) or self.datasets,
            shots=tuple(shots) or self.shots,
            seeds=tuple(seeds) or self.seeds,
            rows=tuple(
                replace(row.changed(overrides), precision=precision or row.precision) for row in self.rows
            ),
        )

    def expand(self) -> list[tuple[str, RunConfig]]:
        """(label, run) for every cell, seeds outermost: a sweep that is cut short has whole tables first."""
        return [
            (row.label, self.run(row, dataset, shots, seed))
            for seed in self.seeds
            for shots in self.shots
            for dataset in self.datasets
            for row in self.rows
        ]

    def run(self, row: MethodRow, dataset: str, shots: int = 16, seed: int = 1) -> RunConfig:
        """A row's run on any dataset."""
        return RunConfig(
            task=self.task,
            dataset=dataset,
            method=row.method,
            preset=row.preset,
            variant=row.variant,
            overrides=row.overrides_on(dataset),
            shots=shots,
            seed=seed,
            views=self.views,
            targets=self.targets,
            samples=row.samples,
            precision=row.precision,
            split=self.split,
            temper=row.temper,
        )


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return names_in()


def load_recipe(name_or_path: str, others: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or from a YAML file; of an unknown name, `others` may have been meant too."""
    path, known = Path(name_or_path), recipe_names()
    if is_file(name_or_path) and not path.is_file():
        raise InputError(f"{path}: no such recipe file")
    if not is_file(name_or_path) and name_or_path not in known:
        raise InputError(f"unknown recipe {name_or_path!r}: {suggest(name_or_path, [*known, *others])}")
    values, where = parsed(name_or_path, "give title, task, backbone, datasets and rows")
    rows = tuple(
        _row(row, f"{where}, row {number}", path.parent)
        for number, row in enumerate(listed(values.pop("rows", None), where, "rows"), start=1)
    )
    views = values.get("views", "centre")
    if views not in ("centre", "fresh") and (type(views) is not int or views < 1):
        raise InputError(f"{where}: views is {views!r}: choose centre, fresh or a number")
    recipe = read(Recipe, {**values, "rows": rows, "name": path.stem}, where)
    labels = [row.label for row in rows]
    for row in rows:
        if labels.count(row.label) > 1:
            raise InputError(f"{where}: two rows have the label {row.label!r}: give each its own")
        for dataset in row.by_dataset:
            if dataset not in recipe.datasets:
                raise InputError(f"{where}: by_dataset of {row.label!r} names {dataset!r}: choose a dataset")
    if strange := [name for name in recipe.apart if name not in (*recipe.datasets, *recipe.targets)]:
        raise InputError(f"{where}: apart names {strange[0]!r}: choose among the datasets and targets")
    return recipe


def _ordered(words: Sequence[str]) -> tuple[str, ...]:
    """Settings in any order are one run; of a setting given twice the last word still counts."""
    return tuple(sorted(words, key=lambda word: word.partition("=")[0]))


def _with_descriptions(settings: Any, folder: Path) -> Any:
    """With what a file says of classes in place of its name, so that a run's name holds it."""
    if not isinstance(settings, dict) or not isinstance(file := settings.get("descriptions"), str):
        return settings
    told = read_descriptions(folder / file)
    return {**settings, "descriptions": json.dumps([[name, *texts] for name, texts in told.items()])}


def _row(values: Any, where: str, folder: Path) -> MethodRow:
    if not isinstance(values, dict):
        raise InputError(f"{where}: is {values!r}: write it as {{label: …, method: …}}")
    check_positive(values, where, "samples")
    if (precision := values.get("precision", "float32")) not in PRECISIONS:
        raise InputError(f"{where}: precision is {precision!r}: choose {', '.join(PRECISIONS)}")
    own = values.get("by_dataset") or {}
    if not isinstance(own, dict):
        raise InputError(f"{where}: by_dataset is {own!r}: write it as {{dataset: {{setting: value}}}}")
    own = {name: _with_descriptions(some, folder) for name, some in own.items()}
    row = {
        **values,
        "label": str(values.get("label", values.get("method"))),
        "overrides": words(values.get("overrides") or {}, where, "overrides"),
        "by_dataset": {name: words(some, where, f"by_dataset, {name},") for name, some in own.items()},
    }
    return read(MethodRow, row, where)
