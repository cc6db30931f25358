"""Tables as grids of runs: YAML files in `recipes/`, or a user's own; what is wrong is told with its fix."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import yaml

from pbprompt.config import from_dict, read_yaml
from pbprompt.errors import InputError, first_line, suggest
from pbprompt.files import read_text
from pbprompt.learners.fit_options import Views
from pbprompt.research.runs import RunConfig, Split, Task
from pbprompt.vision.images.names import read_descriptions
from pbprompt.vision.towers.rounding import PRECISIONS

FOLDER = Path(__file__).with_suffix("")  # of the recipes that come with the package
T = TypeVar("T")


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
        if self.samples < 1:
            raise InputError(f"samples is {self.samples}: give a whole number above 0")
        if self.precision not in PRECISIONS:
            raise InputError(f"precision is {self.precision!r}: choose {', '.join(PRECISIONS)}")
        object.__setattr__(self, "overrides", _ordered(self.overrides))

    def overrides_on(self, dataset: str) -> tuple[str, ...]:
        """The settings that are changed in a run on this dataset."""
        return _ordered((*self.overrides, *self.by_dataset.get(dataset, ())))

    def changed(self, words: Sequence[str]) -> "MethodRow":
        """The row with more settings changed, on every dataset."""
        own = {dataset: (*some, *words) for dataset, some in self.by_dataset.items()}
        return replace(self, overrides=(*self.overrides, *words), by_dataset=own)


def _ordered(words: Sequence[str]) -> tuple[str, ...]:
    """Settings in any order are one run; of a setting given twice the last word still counts."""
    return tuple(sorted(words, key=lambda word: word.partition("=")[0]))


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


def recipe_names(folder: Path = FOLDER) -> list[str]:
    """The recipes that come with the package."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load_recipe(name_or_path: str, others: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or from a YAML file; of an unknown name, `others` may have been meant too."""
    path, known = Path(name_or_path), recipe_names()
    if is_file(name_or_path) and not path.is_file():
        raise InputError(f"{path}: no such recipe file")
    if not is_file(name_or_path) and name_or_path not in known:
        raise InputError(f"unknown recipe {name_or_path!r}: {suggest(name_or_path, [*known, *others])}")
    values = parsed(name_or_path, "give title, task, backbone, datasets and rows")
    with errors_of(name_or_path):
        rows: list[MethodRow] = []
        for number, row in enumerate(listed("rows", values.pop("rows", None)), start=1):
            with errors_of(f"row {number}"):
                rows.append(_row(row, path.parent))
        views = values.get("views", "centre")
        if views not in ("centre", "fresh") and (type(views) is not int or views < 1):
            raise InputError(f"views is {views!r}: choose centre, fresh or a number")
        recipe = read(Recipe, {**values, "rows": tuple(rows), "name": path.stem})
        labels = [row.label for row in rows]
        for row in rows:
            if labels.count(row.label) > 1:
                raise InputError(f"two rows have the label {row.label!r}: give each its own")
            if strange := [name for name in row.by_dataset if name not in recipe.datasets]:
                raise InputError(f"by_dataset of {row.label!r} names {strange[0]!r}: choose a dataset")
        if strange := [name for name in recipe.apart if name not in (*recipe.datasets, *recipe.targets)]:
            raise InputError(f"apart names {strange[0]!r}: choose among the datasets and targets")
    return recipe


def _row(values: Any, folder: Path) -> MethodRow:
    if not isinstance(values, dict):
        raise InputError(f"is {values!r}: write it as {{label: …, method: …}}")
    own = values.get("by_dataset") or {}
    if not isinstance(own, dict):
        raise InputError(f"by_dataset is {own!r}: write it as {{dataset: {{setting: value}}}}")
    row = {
        **values,
        "label": str(values.get("label", values.get("method"))),
        "overrides": setting_words("overrides", values.get("overrides") or {}),
        "by_dataset": {
            name: setting_words(f"by_dataset, {name},", _with_descriptions(some, folder))
            for name, some in own.items()
        },
    }
    return read(MethodRow, row)


def _with_descriptions(settings: Any, folder: Path) -> Any:
    """With what a file says of classes in place of its name, so that a run's name holds it."""
    if not isinstance(settings, dict) or not isinstance(file := settings.get("descriptions"), str):
        return settings
    sentences = read_descriptions(folder / file)
    return {**settings, "descriptions": json.dumps([[name, *texts] for name, texts in sentences.items()])}


# reading any YAML file of these


def is_file(name_or_path: str) -> bool:
    """Whether a user's own file is meant, and no name."""
    return Path(name_or_path).suffix in (".yaml", ".yml")


def parsed(name_or_path: str, fix: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The mapping that a user's file or a recipe of the package holds."""
    text = read_text(Path(name_or_path) if is_file(name_or_path) else folder / f"{name_or_path}.yaml")
    try:
        values = read_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"{name_or_path}: not YAML ({first_line(error)}): fix it") from None
    if not isinstance(values, dict):
        raise InputError(f"{name_or_path}: not a recipe: {fix}")
    return values


@contextmanager
def errors_of(place: str) -> Iterator[None]:
    """Errors that come from here say so."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def read(kind: type[T], values: Mapping[str, Any]) -> T:
    """The values as a dataclass; one word alone is a list of one, where a list is wanted."""
    hints = get_type_hints(kind)
    lists = {key: listed(key, value) for key, value in values.items() if get_origin(hints.get(key)) is tuple}
    return from_dict(kind, {**values, **lists}, "key")


def listed(key: str, value: Any) -> list[Any] | tuple[Any, ...]:
    """The list under a key, which is not empty."""
    values = value if isinstance(value, list | tuple) else [value]
    if (isinstance(values, list) and not values) or None in values:
        raise InputError(f"{key} is empty: list one or more")
    return values


def setting_words(key: str, values: Any) -> tuple[str, ...]:
    """A mapping of settings as `key=value` words."""
    if not isinstance(values, dict):
        raise InputError(f"{key} is {values!r}: write it as {{setting: value}}")
    return tuple(f"{setting}={value}" for setting, value in values.items())
