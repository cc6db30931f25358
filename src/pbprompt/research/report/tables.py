"""From a recipe and the records of its runs to a table: means over seeds, published figures, comparisons.

few-shot       a section per dataset, a column for each number of shots (if one: a column per dataset)
base-to-new    a section per dataset, with the columns Base, New, H and Joint
transfer       a section for what was tuned on, a column for each test set

All figures are percentages. An average is the plain mean over datasets (for transfer: over the targets,
without the source). H is everywhere that of the printed means: of Base and of New, each over its seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from operator import itemgetter
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbprompt.errors import InputError
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.metrics.resampling import PairedDifference, paired_average_difference
from pbprompt.research.recipes import MethodRow, Recipe
from pbprompt.research.report.published import AVERAGE, Figure, published
from pbprompt.research.runs import RunRecord
from pbprompt.vision.images import catalog
from pbprompt.vision.images.fewshot import shots_in_words

Arrays = Mapping[str, NDArray[Any]]
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


@dataclass(frozen=True)
class Cell:
    """A mean over seeds (NaN: nothing measured) with what the paper prints beside it.

    `difference` is ours less the published figure, or less the right one where that is a known misprint.
    """

    mean: float = nan
    std: float | None = None
    seeds: int = 0
    digits: int = 2  # that are printed
    rank: int = 0  # 1: the best of its column, 2: the runner-up
    published: Figure | None = None
    difference: float | None = None

    @property
    def measured(self) -> bool:
        return self.seeds > 0


@dataclass(frozen=True)
class Section:
    """Rows by columns; `leads[row][column]` compares the table's first row with that row, image by image."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    leads: tuple[tuple[PairedDifference | None, ...], ...]


@dataclass(frozen=True)
class Table:
    """A whole table; `labels` are the rows of every section."""

    name: str
    title: str
    labels: tuple[str, ...]
    sections: tuple[Section, ...]
    footnotes: tuple[str, ...]

    @property
    def seeds(self) -> int:
        """The most seeds that a cell rests on."""
        return max((c.seeds for s in self.sections for row in s.cells for c in row), default=0)


def build_table(
    recipe: Recipe, records: Sequence[RunRecord], arrays: Callable[[str], Arrays] | None = None
) -> Table:
    """The recipe's table from whichever of its runs are among the records.

    With `arrays` (`RunStore.arrays`), the first row is compared with each other on the same test images.
    """
    runs = _Runs(recipe, records, arrays)
    sections = []
    for title, columns in layout(recipe):
        plain = [[runs.cell(row, column) for column in columns] for row in recipe.rows]
        cells = tuple(zip(*(ranked(column) for column in zip(*plain, strict=True)), strict=True))
        leads = tuple(tuple(runs.lead(row, column) for column in columns) for row in recipe.rows)
        sections.append(Section(title, tuple(column.heading for column in columns), cells, leads))
    labels = tuple(row.label for row in recipe.rows)
    where = recipe.backbone if recipe.split == "test" else f"{recipe.backbone}, {recipe.split}"
    return Table(recipe.name, f"{recipe.title} ({where})", labels, tuple(sections), runs.footnotes())


class _Runs:
    """The recipe's finished runs by row, dataset, shots and seed; of equal settings, the latest counts.

    Of a row, only those of its newest run's code: figures of two codes are not averaged.
    """

    def __init__(
        self, recipe: Recipe, records: Sequence[RunRecord], arrays: Callable[[str], Arrays] | None
    ) -> None:
        own = [record for record in records if record.backbone.name == recipe.backbone]
        latest = {record.config: (place, record) for place, record in enumerate(own)}
        made = [(*latest[config], label) for label, config in recipe.expand() if config in latest]
        newest = {label: record.code for _, record, label in sorted(made, key=itemgetter(0))}
        self._found: dict[tuple[str, str, int], dict[int, RunRecord]] = {}
        for _, record, label in made:
            if record.code == newest[label]:
                place = (label, record.config.dataset, record.config.shots)
                self._found.setdefault(place, {})[record.config.seed] = record
        self._outdated = len(made) - sum(map(len, self._found.values()))
        printed = [figure for table in recipe.published for figure in published(table)]
        self._printed = {
            (figure.method, figure.dataset, figure.shots, figure.metric): figure
            for figure in reversed(printed)  # the first of several counts
            if figure.backbone == recipe.backbone and recipe.split == "test"
        }
        self._recipe, self._arrays = recipe, arrays
        self._notes: dict[str, None] = {}

    def footnotes(self) -> tuple[str, ...]:
        """What was found to be said while the table was made, each once."""
        outdated = f"Left out: {self._outdated:,} runs of other code than the newest of their row."
        last = [outdated] * bool(self._outdated) + [self._recipe.note] * bool(self._recipe.note)
        return (*self._notes, *last)

    def _of(self, row: MethodRow, dataset: str, shots: int) -> dict[int, RunRecord]:
        """The runs by seed."""
        return self._found.get((row.label, dataset, shots), {})

    def cell(self, row: MethodRow, column: Column) -> Cell:
        """The mean and the deviation over seeds, with the paper's figure beside it."""
        cell = self._measured(row, column)
        place = (row.published or row.label, column.dataset, column.shots, column.metric)
        if (figure := self._printed.get(place)) is None:
            return cell
        if figure.misprint:
            self._notes[f"† {figure.note}."] = None
        right = figure.value if figure.correct is None else figure.correct
        return replace(cell, published=figure, difference=cell.mean - right if cell.measured else None)

    def _measured(self, row: MethodRow, column: Column) -> Cell:
        if column.metric == "H":
            base, new = (self._averaged(row, column, half) for half in ("base", "new"))
            if not (base and new):
                return Cell()
            by_seed = [harmonic_mean(base[1][s], new[1][s]) for s in base[1].keys() & new[1].keys()]
            return Cell(harmonic_mean(base[0], new[0]), deviation(by_seed), min(base[2], new[2]))
        if (found := self._averaged(row, column)) is None:
            return Cell()
        mean, seeds, count = found
        return Cell(mean, deviation(list(seeds.values())), count)

    def _averaged(
        self, row: MethodRow, column: Column, test: str = ""
    ) -> tuple[float, dict[int, float], int] | None:
        """The mean in % over places of their means over seeds; the mean by seed; the fewest seeds of a place.

        `test`: in place of the column's own.
        """
        places = [
            {seed: 100 * run.accuracy(test or own) for seed, run in runs.items()}
            for runs, own in ((self._of(row, dataset, column.shots), own) for dataset, own in column.places)
        ]
        if not all(places):
            return None
        common = sorted(set.intersection(*map(set, places)))
        by_seed = {seed: fmean(place[seed] for place in places) for seed in common}
        return fmean(fmean(place.values()) for place in places), by_seed, min(map(len, places))

    def lead(self, other: MethodRow, column: Column) -> PairedDifference | None:
        """The first row against another on a column's test sets, by images and shared seeds."""
        if self._arrays is None or other is self._recipe.rows[0]:
            return None
        sides: tuple[list[list[Any]], list[list[Any]]] = ([], [])  # of each: by half, by test set
        for half in ("base", "new") if column.metric == "H" else ("",):
            found = [
                self._right(other, column.shots, dataset, half or test, self._arrays)
                for dataset, test in column.places
            ]
            if not all(found):
                return None
            for side, right in zip(sides, zip(*filter(None, found), strict=True), strict=True):
                side.append(list(right))
        tuned_on = list(dict.fromkeys(dataset for dataset, _ in column.places))
        draws = [tuned_on.index(dataset) for dataset, _ in column.places]
        return paired_average_difference(*sides, draws=draws)

    def _right(
        self, other: MethodRow, shots: int, dataset: str, test: str, arrays: Callable[[str], Arrays]
    ) -> list[list[NDArray[np.bool_]]] | None:
        """Of both rows and every seed they share, which images are right; None where none is in common."""
        ours, theirs = (self._of(row, dataset, shots) for row in (self._recipe.rows[0], other))
        seeds = sorted(ours.keys() & theirs.keys())
        try:
            answers = [[arrays(side[seed].id) for seed in seeds] for side in (ours, theirs)]
        except InputError as error:
            self._notes[f"No comparison for some rows: {error}."] = None
            return None
        labels = [one[f"{test}/label"] for side in answers for one in side]
        if not labels or not all(np.array_equal(labels[0], some) for some in labels):
            return None  # measured on other images
        return [[one[f"{test}/predicted"] == labels[0] for one in side] for side in answers]


def deviation(values: Sequence[float]) -> float | None:
    """Of the sample: √(Σ_s (x_s − x̄)² / (n − 1)); None where there is but one."""
    return stdev(values) if len(values) > 1 else None


def ranked(column: Sequence[Cell], higher: bool = True) -> list[Cell]:
    """The best and the runner-up marked, equal where they print alike; where all do, nothing is marked."""
    means = {round(cell.mean, cell.digits) for cell in column if cell.measured}
    if len(means) < 2:
        return list(column)
    ranks = dict(zip(sorted(means, reverse=higher), (1, 2), strict=False))
    return [replace(cell, rank=ranks.get(round(cell.mean, cell.digits), 0)) for cell in column]


def title_of(dataset: str) -> str:
    """A dataset as tables name it: `oxford_pets` is OxfordPets, `pacs:sketch` PACS sketch."""
    name, _, domain = dataset.partition(":")
    known = catalog.lookup(name)
    return f"{known.title if known else name} {domain.replace('_', ' ')}".strip()


def layout(recipe: Recipe) -> Iterator[tuple[str, list[Column]]]:
    """(title, columns) of every section."""
    groups = _with_average(recipe, recipe.datasets)
    own = [(title, tuple((dataset, dataset) for dataset in datasets)) for title, datasets in groups]
    if recipe.task == "few-shot" and len(recipe.shots) > 1:
        for title, places in own:
            yield title, [Column(shots_in_words(shots), places, shots, title) for shots in recipe.shots]
        return
    for shots in recipe.shots:
        words = shots_in_words(shots)
        if recipe.task == "few-shot":
            yield words, [Column(title, places, shots, title) for title, places in own]
        elif recipe.task == "base-to-new":
            for title, datasets in groups:
                tests = [(heading, tuple((d, key) for d in datasets)) for key, heading in METRICS.items()]
                columns = [Column(heading, places, shots, title, heading) for heading, places in tests]
                yield title if len(recipe.shots) == 1 else f"{title}, {words}", columns
        else:
            for source in recipe.datasets:
                tested = [(title_of(source), [source]), *_with_average(recipe, recipe.targets)]
                tests = [(title, tuple((source, target) for target in some)) for title, some in tested]
                columns = [Column(title, places, shots, title) for title, places in tests]
                yield f"tuned on {title_of(source)}, {words}", columns


def _with_average(recipe: Recipe, datasets: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each dataset under its title, then all that are averaged."""
    counted = [dataset for dataset in datasets if dataset not in recipe.apart]
    average = [(AVERAGE, counted)] if len(counted) > 1 else []
    return [(title_of(dataset), [dataset]) for dataset in datasets] + average
