"""How a recipe's table is laid out: its sections and columns, shaped as the paper's.

few-shot       a section per dataset, a column for each number of shots (if one: a column per dataset)
base-to-new    a section per dataset, with the columns Base, New, H and Joint
transfer       a section for what was tuned on, a column for each test set
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pbprompt.data import catalog
from pbprompt.data.fewshot import shots_in_words
from pbprompt.recipes import Recipe
from pbprompt.report.published import AVERAGE

METRICS = {"base": "Base", "new": "New", "H": "H", "joint": "Joint"}


@dataclass(frozen=True)
class Column:
    """Where a column's figures are: in the runs of these datasets, under a test's name.

    Several places are averaged; `H` over several is that of the averages.
    """

    heading: str
    places: tuple[tuple[str, str], ...]  # (dataset that was tuned on, test)
    shots: int
    dataset: str  # as the paper names it
    metric: str = "accuracy"


def title_of(dataset: str) -> str:
    """A dataset as tables name it: `oxford_pets` is OxfordPets, `pacs:sketch` PACS sketch."""
    name, _, domain = dataset.partition(":")
    known = catalog.lookup(name)
    return f"{known.title if known else name} {domain.replace('_', ' ')}".strip()


def layout(recipe: Recipe) -> list[tuple[str, list[Column]]]:
    """(title, columns) of every section."""
    if recipe.task == "base-to-new":
        groups = [(title_of(d), [d]) for d in recipe.datasets] + _average(recipe, recipe.datasets)
        return [
            (
                title if len(recipe.shots) == 1 else f"{title}, {shots_in_words(shots)}",
                [
                    Column(heading, tuple((d, key) for d in datasets), shots, title, heading)
                    for key, heading in METRICS.items()
                ],
            )
            for shots in recipe.shots
            for title, datasets in groups
        ]
    if recipe.task == "few-shot":
        groups = [(title_of(d), [d]) for d in recipe.datasets] + _average(recipe, recipe.datasets)
        if len(recipe.shots) > 1:
            return [
                (
                    title,
                    [
                        Column(shots_in_words(k), tuple((d, d) for d in datasets), k, title)
                        for k in recipe.shots
                    ],
                )
                for title, datasets in groups
            ]
        shots = recipe.shots[0]
        columns = [Column(title, tuple((d, d) for d in datasets), shots, title) for title, datasets in groups]
        return [(shots_in_words(shots), columns)]
    return [
        (
            f"tuned on {title_of(source)}, {shots_in_words(shots)}",
            [
                Column(title, tuple((source, test) for test in tests), shots, title)
                for title, tests in [(title_of(d), [d]) for d in (source, *recipe.targets)]
                + _average(recipe, recipe.targets)
            ],
        )
        for shots in recipe.shots
        for source in recipe.datasets
    ]


def _average(recipe: Recipe, datasets: Sequence[str]) -> list[tuple[str, list[str]]]:
    counted = [dataset for dataset in datasets if dataset not in recipe.apart]
    return [(AVERAGE, counted)] if len(counted) > 1 else []
