"""Flowers102: 102 flowers common in the United Kingdom."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, UNSTATED, Benchmark, from_split

BENCHMARK = Benchmark(
    name="flowers102",
    title="Flowers102",
    aliases=("oxford_flowers",),
    folder="oxford_flowers",
    marker="split_zhou_OxfordFlowers.json",
    classes=102,
    counts=(4_093, 1_633, 2_463),
    licence=UNSTATED,
    source=f"https://www.robots.ox.ac.uk/~vgg/data/flowers/102/, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_OxfordFlowers.json", "jpg"),
    template="a photo of a {}, a type of flower.",
)
