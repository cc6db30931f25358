"""The studies on photographs: the recipes they are made of, and the columns their figures are shown in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.research.recipes import MethodRow, Recipe, load_recipe
from pbprompt.research.report.tables import METRICS as HALVES
from pbprompt.research.report.tables import title_of
from pbprompt.research.runs import RunConfig

RECIPES = Path(__file__).with_name("recipes")
AVERAGE = "average"
EVERYTHING = "average of all"  # with the datasets that stand apart
FEW = 4  # shots that count as few
TASKS = ("few-shot", "base-to-new", "cross-dataset", "domain-shift", "domain-shift-grocery")
KNOBS = ("eta", "lambda", "draws", "samples", "kl", "temperature", "tokens", "epochs")
# Study -> part -> its recipes. The first row of a part is the one that the others are compared with.
STUDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "prompts": {
        **{task: (f"photos-{task}",) for task in TASKS},
        "few-shot": ("photos-few-shot", "photos-few-shot-five-seeds"),
        **{knob: (f"photos-ablation-{knob}",) for knob in KNOBS},
    },
    "evidence": {part: (f"evidence-{part}",) for part in (*TASKS, "untouched")},
}
# Rows that the others of their part are compared with, besides the first one.
REFERENCES = {"eta": ("η = 0.01",), "lambda": ("λ = 0.5",)}


@dataclass(frozen=True)
class Place:
    """Where a figure is: under a test's name, in the runs of a dataset with so many shots."""

    dataset: str
    test: str
    shots: int


@dataclass(frozen=True)
class Column:
    """Places whose figures are averaged; H is that of the averages of base and of new accuracy."""

    group: str
    heading: str
    places: tuple[Place, ...]
    harmonic: bool = False

    @property
    def key(self) -> str:
        return ", ".join(filter(None, (self.group, self.heading)))


@dataclass(frozen=True)
class Part:
    """Recipes with the same rows and datasets, whose seeds and shots are put together."""

    name: str
    recipes: tuple[Recipe, ...]

    @property
    def recipe(self) -> Recipe:
        return self.recipes[0]

    @property
    def rows(self) -> tuple[MethodRow, ...]:
        return self.recipe.rows

    def expand(self) -> dict[RunConfig, str]:
        """Run -> label of its row."""
        return {config: label for recipe in self.recipes for label, config in recipe.expand()}

    def columns(self) -> list[Column]:
        recipe = self.recipe
        if recipe.task == "base-to-new":
            return _base_to_new(recipe)
        return _few_shot(recipe) if recipe.task == "few-shot" else _transfer(recipe)


def load_parts(names: Sequence[str] = (), study: str = "prompts") -> list[Part]:
    """The named parts of a study, or all."""
    parts = STUDIES[study]
    if unknown := set(names) - set(parts):
        raise InputError(f"{', '.join(sorted(unknown))}: no part of {study}: known are {', '.join(parts)}")
    return [Part(name, tuple(map(study_recipe, parts[name]))) for name in names or parts]


def study_recipe(name: str) -> Recipe:
    """One of the studies' recipes."""
    return load_recipe(str(RECIPES / f"{name}.yaml"))


def _few_shot(recipe: Recipe) -> list[Column]:
    few = [shots for shots in recipe.shots if shots <= FEW]
    columns = []
    for group, datasets in _groups(recipe, recipe.datasets):
        spans = [[shots] for shots in recipe.shots] + ([few] if group == AVERAGE and len(few) > 1 else [])
        for span in spans:
            places = tuple(Place(dataset, dataset, shots) for shots in span for dataset in datasets)
            columns.append(Column(group, shots_in_words(span), places))
    return columns


def _base_to_new(recipe: Recipe) -> list[Column]:
    (shots,) = recipe.shots
    columns = []
    for group, datasets in _groups(recipe, recipe.datasets):
        for test, heading in HALVES.items():
            tests = ("base", "new") if test == "H" else (test,)
            places = tuple(Place(dataset, one, shots) for one in tests for dataset in datasets)
            columns.append(Column(group, heading, places, harmonic=test == "H"))
    return columns


def _transfer(recipe: Recipe) -> list[Column]:
    (shots,), (source,) = recipe.shots, recipe.datasets
    groups = [(title_of(source), [source]), *_groups(recipe, recipe.targets)]
    return [Column("", title, tuple(Place(source, test, shots) for test in tests)) for title, tests in groups]


def _groups(recipe: Recipe, datasets: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The average first (without what is apart, then with it), then every dataset alone."""
    counted = [dataset for dataset in datasets if dataset not in recipe.apart]
    averages = [(AVERAGE, counted)] if len(counted) > 1 else []
    if len(counted) < len(datasets):
        averages.append((EVERYTHING, list(datasets)))
    return averages + [(title_of(dataset), [dataset]) for dataset in datasets]


def shots_in_words(span: Sequence[int]) -> str:
    """[1] -> "1 shot"; [1, 2, 4] -> "1, 2 and 4 shots"."""
    if len(span) == 1:
        return "1 shot" if span[0] == 1 else f"{span[0]} shots"
    return f"{', '.join(map(str, span[:-1]))} and {span[-1]} shots"
