"""ImageNet-A: photographs that mislead classifiers, 200 of ImageNet's classes, for testing only."""

from pbprompt.data.catalog.benchmark import Benchmark, imagenet_shift

BENCHMARK = Benchmark(
    name="imagenet_a",
    title="ImageNet-A",
    aliases=("imagenet-adversarial",),
    folder="imagenet-adversarial",
    marker="imagenet-a",
    classes=200,
    counts=(0, 0, 7_500),
    licence="MIT (its repository)",
    source="https://github.com/hendrycks/natural-adv-examples, with ImageNet's classnames.txt beside it",
    read=imagenet_shift("imagenet-a"),
)
