"""UCF101: 101 human actions, the middle frame of each video."""

import re

from pbprompt.data.catalog.benchmark import SPLIT_FILES, UNSTATED, Benchmark, from_split


def split_capitals(name: str) -> str:
    """`ApplyEyeMakeup` → `Apply Eye Makeup`; names already split stay."""
    return name if "_" in name or " " in name else " ".join(re.findall("[A-Z][^A-Z]*", name)) or name


BENCHMARK = Benchmark(
    name="ucf101",
    title="UCF101",
    folder="ucf101",
    marker="split_zhou_UCF101.json",
    classes=101,
    counts=(7_639, 1_898, 3_783),
    licence=UNSTATED,
    source=f"https://www.crcv.ucf.edu/data/UCF101.php, the frames and the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_UCF101.json", "UCF-101-midframes", split_capitals),
    template="a photo of a person doing {}.",
)
