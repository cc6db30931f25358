"""The paper's own figures, as printed, and what is known to be misprinted among them."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pbprompt.errors import InputError

BACKBONES = ("ViT-B/16", "RN50")  # what the paper measured on: nothing else may be set beside its figures
AVERAGE = "Average"


@dataclass(frozen=True)
class Figure:
    """One printed number, in % except in the table of costs; `std` where the paper gives one."""

    table: str
    task: str
    backbone: str
    dataset: str
    method: str
    shots: int | None
    metric: str
    value: float
    std: float | None


@dataclass(frozen=True)
class Misprint:
    """A printed number that cannot be right, and the right one; or, without both, several of a row."""

    table: str
    method: str
    datasets: tuple[str, ...]
    metric: str
    shots: int
    printed: float | None
    correct: float | None
    why: str

    def touches(self, figure: Figure) -> bool:
        """Whether the figure is the misprinted one, or one of them."""
        place = (figure.table, figure.method, figure.metric, figure.shots)
        own = (self.table, self.method, self.metric, self.shots)
        return place == own and figure.dataset in self.datasets

    def __str__(self) -> str:
        shots = "1 shot" if self.shots == 1 else f"{self.shots} shots"
        if self.printed is None or self.correct is None:
            return f"{self.method}, {self.metric}, {shots}: {self.why}"
        where = f"{self.method}, {self.datasets[0]}, {self.metric}, {shots}"
        return f"{where}: printed {self.printed:.2f}, should be {self.correct:.2f}: {self.why}"


MISPRINTS = (
    Misprint("few_shot_vit", "CoOp", (AVERAGE,), "accuracy", 4, 70.02, 72.98, "the mean of its datasets"),
    Misprint("few_shot_rn50", "CoOp", (AVERAGE,), "accuracy", 2, 61.51, 61.78, "the mean of its datasets"),
    Misprint(
        "base_to_new_vit",
        "CoOp+VPT",
        ("OxfordPets",),
        "H",
        16,
        96.61,
        94.17,
        "H of 90.77 and 97.83",
    ),
    Misprint(
        "base_to_new_variants",
        "VPT",
        ("Flowers102",),
        "Base",
        16,
        92.97,
        72.97,
        "another table has 72.97, which fits the H that both print",
    ),
    Misprint(
        "base_to_new_rn50",
        "CoCoOp",
        ("OxfordPets",),
        "H",
        16,
        92.44,
        93.44,
        "H of 92.30 and 94.60",
    ),
    Misprint(
        "base_to_new_vit",
        "CoOp+SHIP",
        ("Food101",),
        "H",
        16,
        90.87,
        90.78,
        "H of 90.54 and 91.03",
    ),
    Misprint(
        "cross_dataset",
        "CoOp",
        ("StanfordCars",),
        "accuracy",
        16,
        65.41,
        64.51,
        "what CoOp's own figures say",
    ),
    Misprint(
        "cross_dataset_coop_based",
        "ProGrad",
        (
            "Caltech101",
            "OxfordPets",
            "StanfordCars",
            "Flowers102",
            "Food101",
            "FGVCAircraft",
            "SUN397",
            "DTD",
            "EuroSAT",
            "UCF101",
            AVERAGE,
        ),
        "accuracy",
        16,
        None,
        None,
        "the row repeats CoCoOp's on every target",
    ),
)


def tables() -> list[str]:
    """The keys of the paper's tables."""
    return list(dict.fromkeys(figure.table for figure in _figures()))


def published(table: str) -> list[Figure]:
    """The figures of one table, as printed."""
    found = [figure for figure in _figures() if figure.table == table]
    if not found:
        raise InputError(f"the paper has no table {table!r}: it has {', '.join(tables())}")
    return found


def misprint(figure: Figure) -> Misprint | None:
    """What is known to be wrong with a figure."""
    return next((known for known in MISPRINTS if known.touches(figure)), None)


@cache
def _figures() -> tuple[Figure, ...]:
    text = (files("pbprompt.report") / "results.csv").read_text(encoding="utf-8")
    return tuple(
        Figure(
            row["table"],
            row["task"],
            row["backbone"],
            row["dataset"],
            row["method"],
            int(row["shots"]) if row["shots"] else None,
            row["metric"],
            float(row["value"]),
            float(row["std"]) if row["std"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )
