"""StanfordCars: 196 makes and models; the year stands before the name ("2012 Acura TL Sedan")."""

import re

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split


def year_first(name: str) -> str:
    """`Acura TL Sedan 2012` → `2012 Acura TL Sedan`."""
    return re.sub(r"^(.+) (\d{4})$", r"\2 \1", name)


BENCHMARK = Benchmark(
    name="stanford_cars",
    title="StanfordCars",
    folder="stanford_cars",
    marker="split_zhou_StanfordCars.json",
    classes=196,
    counts=(6_509, 1_635, 8_041),
    licence="non-commercial research",
    source=f"https://ai.stanford.edu/~jkrause/cars/car_dataset.html, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_StanfordCars.json", rename=year_first),
)
