"""Part `classes`: one training step over as many classes as ImageNet-21K has."""

from collections.abc import Iterator
from typing import Any

from benchmarks.speed.measuring import DidNotFitError, apart, measure, on_cuda
from benchmarks.speed.setups import SHOTS, Case, Options, make_backbone, make_method, random_batch
from benchmarks.speed.steps import LibraryStep

CLASSES = 21_000


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row per method."""
    device = options.device
    backbone, dtype = ("ViT-B/16", "float16") if on_cuda(device) else ("lite", "float32")
    backbone, classes = ("tiny", 300) if options.quick else (backbone, CLASSES)
    for method in ("coop", "pbprompt"):
        yield row(Case(method, backbone, classes, device, dtype, options.limit))


def row(case: Case) -> dict[str, Any]:
    about = {
        "method": case.method,
        "backbone": case.backbone,
        "precision": case.dtype,
        "classes": case.classes,
    }
    try:
        return about | apart(case.device, step_cost, case)
    except DidNotFitError as error:
        return about | {"ms": None, "gib": None, "note": f"did not fit: {error}"}


def step_cost(case: Case) -> dict[str, Any]:
    """Milliseconds, and the peak of memory with the frozen weights in it."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(case, backbone)
    batch = random_batch(backbone, case.classes, method.images_a_step(SHOTS * case.classes))
    weights = sum(value.nbytes for value in backbone.buffers()) / 2**30
    cost = measure(LibraryStep(method, batch), case.device, 5, case.limit)
    return {"batch": len(batch.labels), "ms": 1e3 * cost.seconds, "gib": cost.gib + weights}
