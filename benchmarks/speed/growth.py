"""Part `growth`: time and memory of PBPrompt as one size grows and the others stay."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.speed.fits import Fit, fit_ours
from benchmarks.speed.measuring import GIB, apart, measure, memory_now, memory_peak, on_cuda
from benchmarks.speed.pictures import make_dataset
from benchmarks.speed.setups import Case, Options, make_backbone, make_method, random_batch
from benchmarks.speed.steps import LibraryStep
from pbprompt.vision.towers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sizes:
    """What each size is while another grows, and the values it takes; `images` are those of a whole epoch."""

    base: Mapping[str, int]
    grows: Mapping[str, Sequence[int]]
    images: Sequence[int]


GROWS = {"samples": (1, 2, 4, 8), "patches": (49, 98, 196, 392), "batch": (16, 32, 64, 128)}
ON_CPU = Sizes(
    {"classes": 100, "samples": 1, "patches": 49, "batch": 32},
    {"classes": (50, 100, 200, 400, 800), **GROWS},
    (32, 64, 128, 256),
)
ON_CUDA = Sizes(
    {"classes": 1000, "samples": 1, "patches": 196, "batch": 32},
    {"classes": (100, 300, 1000, 3000, 9000), **GROWS},
    (256, 512, 1024, 2048),
)
QUICK = Sizes(
    {"classes": 4, "samples": 1, "patches": 16, "batch": 2},
    {"classes": (4, 8), "samples": (1, 2), "patches": (16, 32), "batch": (2, 4)},
    (16, 32),
)


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row per point: what grows, its value, milliseconds, GiB."""
    device, cuda = options.device, on_cuda(options.device)
    sizes = QUICK if options.quick else ON_CUDA if cuda else ON_CPU
    name, dtype = ("ViT-B/16", "float16") if cuda else ("lite", "float32")
    name = "tiny" if options.quick else name
    for grows, values in sizes.grows.items():
        for value in values:
            point = {**sizes.base, grows: value}
            case = Case("pbprompt", name, point["classes"], device, dtype, options.limit / 2)
            ms, gib = apart(device, step_point, case, point["samples"], point["patches"], point["batch"])
            yield {"grows": grows, "value": value, "backbone": name, **point, "ms": ms, "gib": gib}
    with tempfile.TemporaryDirectory() as folder:
        whole = make_dataset(Path(folder), Tokenizer(), max(sizes.images), 8)
        for count in sizes.images:
            fit = Fit("pbprompt", name, device, dtype, replace(whole, train=whole.train[-count:]), 1)
            ms, gib = apart(device, fit_point, fit)
            yield {
                "grows": "images",
                "value": count,
                "backbone": name,
                "classes": len(whole.classes),
                "ms": ms,
                "gib": gib,
            }


def step_point(case: Case, samples: int, patches: int, batch: int) -> tuple[float, float]:
    """One training step from cached features."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(replace(case, overrides=(f"train_samples={samples}",)), backbone)
    images = random_batch(backbone, case.classes, batch, patches)
    cost = measure(LibraryStep(method, images), case.device, 5, case.limit)
    return 1e3 * cost.seconds, cost.gib


def fit_point(fit: Fit) -> tuple[float, float]:
    """One epoch from JPEG files, encoding included."""
    before = memory_now(fit.device)
    seconds, _ = fit_ours(fit)
    return 1e3 * seconds, (memory_peak(fit.device) - before) / GIB
