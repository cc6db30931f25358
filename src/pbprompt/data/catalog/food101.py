"""Food101: 101 dishes."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, UNSTATED, Benchmark, from_split

BENCHMARK = Benchmark(
    name="food101",
    title="Food101",
    folder="food-101",
    marker="split_zhou_Food101.json",
    classes=101,
    counts=(50_500, 20_200, 30_300),
    licence=UNSTATED,
    source=f"https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_Food101.json", "images"),
    template="a photo of {}, a type of food.",
)
