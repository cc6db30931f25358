"""Part `imagenet`: a whole PBPrompt run of ImageNet's 16-shot size, from JPEG files and with fresh views."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed.measuring import GIB, apart, memory_now, memory_peak, on_cuda
from benchmarks.speed.pictures import make_dataset
from benchmarks.speed.rates import seconds_of
from benchmarks.speed.setups import OVERRIDES, SHOTS, Options, make_backbone
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.learn import tune
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.towers.tokenizer import Tokenizer

IMAGES, EPOCHS = 16_000, 10
CPU_IMAGES, CPU_EPOCHS = 256, 2  # where no other number is asked for: the whole would take a CPU hours


def run(options: Options) -> Iterator[dict[str, Any]]:
    """One row: seconds from the files to the tuned method; making the files does not count."""
    small = not on_cuda(options.device)
    images = options.images or (32 if options.quick else CPU_IMAGES if small else IMAGES)
    epochs = options.epochs or (1 if options.quick else CPU_EPOCHS if small else EPOCHS)
    name = "tiny" if options.quick else "lite" if small else "ViT-B/16"
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(Path(folder), Tokenizer(), images, SHOTS)
        yield apart(options.device, whole_run, name, options.device, dataset, epochs)


def whole_run(name: str, device: str, dataset: Dataset, epochs: int) -> dict[str, Any]:
    dtype = "float16" if on_cuda(device) else "float32"
    backbone = make_backbone(name, device, dtype)
    kind = find_method("pbprompt")
    config = make_config(kind, overrides=[*OVERRIDES["pbprompt"], f"epochs={epochs}"])
    images = len(dataset.train)
    size = sum(dataset.file(item).stat().st_size for item in dataset.train) / images
    with tempfile.TemporaryDirectory() as cache:

        def whole() -> None:
            bank = FeatureCache(backbone, cache=Path(cache), progress=False)
            tune(dataset, bank, kind, config, FitOptions(shots=SHOTS, seed=1, views="fresh", progress=False))

        before = memory_now(device)
        seconds, _ = seconds_of(whole, device)
        gib = (memory_peak(device) - before) / GIB
    return {
        "method": "pbprompt",
        "backbone": name,
        "precision": dtype,
        "images": images,
        "classes": len(dataset.classes),
        "epochs": epochs,
        "kb_an_image": size / 1e3,
        "seconds": seconds,
        "images_per_second": images * epochs / seconds,
        "gib": gib,
    }
