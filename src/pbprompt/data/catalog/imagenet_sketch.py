"""ImageNet-Sketch: drawings of ImageNet's 1,000 classes, for testing only."""

from pbprompt.data.catalog.benchmark import Benchmark, imagenet_shift

BENCHMARK = Benchmark(
    name="imagenet_sketch",
    title="ImageNet-Sketch",
    folder="imagenet-sketch",
    marker="images",
    classes=1_000,
    counts=(0, 0, 50_889),
    licence="MIT (its repository)",
    source="https://github.com/HaohanWang/ImageNet-Sketch, with ImageNet's classnames.txt beside it",
    read=imagenet_shift("images"),
)
