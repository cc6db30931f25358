"""ImageNetV2 (matched frequency): ten new images of each of ImageNet's 1,000 classes, for testing only."""

from pbprompt.data.catalog.benchmark import Benchmark, imagenet_shift

_IMAGES = "imagenetv2-matched-frequency-format-val"

BENCHMARK = Benchmark(
    name="imagenetv2",
    title="ImageNetV2",
    folder="imagenetv2",
    marker=_IMAGES,
    classes=1_000,
    counts=(0, 0, 10_000),
    licence="MIT (its repository); the images under their Flickr licences",
    source="https://github.com/modestyachts/ImageNetV2, with ImageNet's classnames.txt beside it",
    read=imagenet_shift(_IMAGES, numbered=True),
)
