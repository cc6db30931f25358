"""ImageNet-R: renditions (art, toys, embroidery) of 200 of ImageNet's classes, for testing only."""

from pbprompt.data.catalog.benchmark import Benchmark, imagenet_shift

BENCHMARK = Benchmark(
    name="imagenet_r",
    title="ImageNet-R",
    aliases=("imagenet-rendition",),
    folder="imagenet-rendition",
    marker="imagenet-r",
    classes=200,
    counts=(0, 0, 30_000),
    licence="MIT (its repository)",
    source="https://github.com/hendrycks/imagenet-r, with ImageNet's classnames.txt beside it",
    read=imagenet_shift("imagenet-r"),
)
