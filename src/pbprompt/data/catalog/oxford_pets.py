"""OxfordPets: 37 breeds of cats and dogs."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split

BENCHMARK = Benchmark(
    name="oxford_pets",
    title="OxfordPets",
    folder="oxford_pets",
    marker="split_zhou_OxfordPets.json",
    classes=37,
    counts=(2_944, 736, 3_669),
    licence="CC BY-SA 4.0",
    source=f"https://www.robots.ox.ac.uk/~vgg/data/pets/, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_OxfordPets.json", "images"),
    template="a photo of a {}, a type of pet.",
)
