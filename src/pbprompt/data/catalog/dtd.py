"""DTD, the Describable Textures Dataset: 47 textures named by adjectives."""

from pbprompt.data.catalog.benchmark import SPLIT_FILES, Benchmark, from_split

BENCHMARK = Benchmark(
    name="dtd",
    title="DTD",
    aliases=("describable_textures",),
    folder="dtd",
    marker="split_zhou_DescribableTextures.json",
    classes=47,
    counts=(2_820, 1_128, 1_692),
    licence="research",
    source=f"https://www.robots.ox.ac.uk/~vgg/data/dtd/, the split file from {SPLIT_FILES}",
    read=from_split("split_zhou_DescribableTextures.json", "images"),
    template="{} texture.",
)
