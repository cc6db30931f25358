"""Which of the paper's printed figures cannot be right, found by recomputing them from the others.

    mean of a row's datasets, H of Base and New            off by more than rounding or cutting explains
    one quantity in two tables                             the one printed more often counts, else the
                                                           larger table's

Two more are known from elsewhere.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from pbprompt.evaluate.metrics import harmonic_mean
from pbprompt.report.published import AVERAGE, Figure, figures, published

ROUNDING = 0.0151  # two decimals: rounded figures, and a result that is rounded or cut
COARSE = 0.06  # tables with one decimal
FULL = (
    "few_shot_vit",
    "few_shot_rn50",
    "base_to_new_vit",
    "base_to_new_rn50",
)  # the others print parts of them
SAME = {"VPT": "CoOp+VPT", "SHIP": "CoOp+SHIP", "PBPrompt(lambda=0.5)": "PBPrompt"}  # names of one method
APART = ("computation_cost", "trade_off_50_more_epochs")  # of other quantities than the rest


@dataclass(frozen=True)
class Misprint:
    """A printed number that cannot be right, and the right one; or none, where that is not known."""

    figure: Figure
    correct: float | None
    why: str

    def __str__(self) -> str:
        f = self.figure
        shots = f"{f.shots} shot{'s' * (f.shots != 1)}"
        if self.correct is None:
            return f"{f.method}, {f.metric}, {shots}: {self.why}"
        where = f"{f.method}, {f.dataset}, {f.metric}, {shots}"
        return f"{where}: printed {f.value:.2f}, should be {self.correct:.2f}: {self.why}"


def misprint(figure: Figure) -> Misprint | None:
    """What is known to be wrong with a figure."""
    return misprints().get(figure)


@cache
def misprints() -> dict[Figure, Misprint]:
    """All of them."""
    found = [*_known(), *_contradicted()]
    right = {wrong.figure: wrong.correct for wrong in found if wrong.correct is not None}
    found += [wrong for wrong in _recomputed(right) if wrong.figure not in right]
    return {wrong.figure: wrong for wrong in found}


def _known() -> Iterator[Misprint]:
    for figure in published("cross_dataset"):
        if (figure.method, figure.dataset) == ("CoOp", "StanfordCars"):
            yield Misprint(figure, 64.51, "what CoOp's own figures say")
    for figure in published("cross_dataset_coop_based"):
        if figure.method == "ProGrad" and figure.dataset != "ImageNet":
            yield Misprint(figure, None, "the row repeats CoCoOp's on every target")


def _contradicted() -> Iterator[Misprint]:
    """Figures that another table prints otherwise."""
    places = defaultdict(list)
    for f in figures():
        if f.table not in APART:
            name = SAME.get(f.method, f.method)
            places[f.task, f.backbone, f.dataset, name, f.shots, f.metric].append(f)
    for same in places.values():
        times = Counter(f.value for f in same)
        right = max(same, key=lambda f: (times[f.value], f.table in FULL)).value
        for f in same:
            if abs(f.value - right) > ROUNDING:
                yield Misprint(
                    f, right, "what the other tables have" if len(same) > 2 else "what another has"
                )


def _recomputed(right: dict[Figure, float]) -> Iterator[Misprint]:
    """Means and H that do not follow from the figures they are of, misprints among those put right."""
    rows: dict[tuple[object, ...], dict[str, dict[str, Figure]]] = defaultdict(lambda: defaultdict(dict))
    for f in figures():
        rows[f.table, f.backbone, f.method, f.shots][f.metric][f.dataset] = f

    def value(figure: Figure) -> float:
        return right.get(figure, figure.value)

    for row in rows.values():
        for metric, line in row.items():
            parts = [f for name, f in line.items() if name != AVERAGE and _averaged(f)]
            if AVERAGE in line and metric != "H":
                mean = fmean(map(value, parts))
                yield from _if_off(line[AVERAGE], mean, parts, "the mean of its datasets")
        for name, h in row["H"].items():
            if row["Base"] and row["New"]:
                parts = [row["Base"][name], row["New"][name]]
                both = harmonic_mean(*map(value, parts))
                yield from _if_off(h, both, parts, "H of {:.2f} and {:.2f}".format(*map(value, parts)))


def _averaged(figure: Figure) -> bool:
    """Whether the average takes it in: on the way to other datasets, not ImageNet."""
    return figure.task != "cross-dataset" or figure.dataset != "ImageNet"


def _if_off(printed: Figure, value: float, parts: list[Figure], why: str) -> Iterator[Misprint]:
    coarse = all(round(f.value, 1) == f.value for f in parts)
    if abs(printed.value - value) > (COARSE if coarse else ROUNDING):
        yield Misprint(printed, round(value, 2), why)
