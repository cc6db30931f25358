"""Part `stream`: the one pass of a streamed `conjugate` fit over as many images as ImageNet has.

Features are synthetic and lie in memory, more than the processor's caches hold, gone round until the number
is reached. Beside the pass: a copy of the same memory, its sum, and the plain product XᵀX in float64, which
the scatter within classes needs.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.measuring import GIB, apart, memory_now, memory_peak
from benchmarks.speed.rates import rate, seconds_of
from benchmarks.speed.setups import Options
from pbprompt.evidence.evidence import BLOCK, Gathering

IMAGES, CLASSES, WIDTHS = 1_281_167, 1000, (256, 512)
BLOCKS = 24  # of 4,096 images: 100 to 200 MB


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row a width of the features."""
    images, blocks = (20_000, 2) if options.quick else (options.images or IMAGES, BLOCKS)
    for width in (32,) if options.quick else WIDTHS:
        yield apart(options.device, one_pass, options.device, images, CLASSES, width, blocks, options.limit)


def one_pass(device: str, images: int, classes: int, width: int, blocks: int, limit: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    pool = [torch.randn(BLOCK, width, generator=generator).to(device) for _ in range(blocks)]
    labels = [torch.randint(classes, (BLOCK,), generator=generator).to(device) for _ in range(blocks)]
    gathering = Gathering(width, device)
    held = blocks * BLOCK
    there = torch.empty_like(pool[0])

    def whole() -> None:
        left = images
        for features, own in cycle(zip(pool, labels, strict=True)):
            gathering.add(features[:left], own[:left])
            left -= BLOCK
            if left <= 0:
                return

    def each(work: Callable[[Tensor], object]) -> float:
        return rate(lambda: [work(block) for block in islice(pool, blocks)], held, device, limit)

    for features, own in zip(pool, labels, strict=True):  # the first touch of everything
        Gathering(width, device).add(features, own)
    before = memory_now(device)
    seconds, _ = seconds_of(whole, device)
    gib = (memory_peak(device) - before) / GIB
    ours = images / seconds
    copy, total, product = each(there.copy_), each(torch.sum), each(_product)
    return {
        "images": images,
        "classes": classes,
        "width": width,
        "seconds": seconds,
        "images_per_second": ours,
        "copy_per_second": copy,
        "sum_per_second": total,
        "product_per_second": product,
        "to_copy": copy / ours,
        "to_product": product / ours,
        "gib": gib,
    }


def _product(block: Tensor) -> Tensor:
    double = block.double()
    return double.T @ double
