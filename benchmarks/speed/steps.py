"""Part `steps`: one training step, the library's against the plain way, and whether they agree."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.flops import step_flops
from benchmarks.speed.measuring import Cost, DidNotFitError, apart, measure
from benchmarks.speed.plain import PlainLoss, plain_optimiser
from benchmarks.speed.rates import matrix_rate
from benchmarks.speed.setups import METHODS, SHOTS, Case, Options, make_backbone, make_method, random_batch
from pbprompt.learners.method import Batch
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.step import WARM_UP, Step
from pbprompt.research.costs import random_images

NOISE_SEED = 5


def cases(options: Options) -> list[Case]:
    """What is measured on the device."""
    device = options.device
    if options.quick:
        return [Case(method, "tiny", 6, device, "float32", options.limit) for method in METHODS]
    if device == "cpu":
        lite = [Case(method, "lite", 100, device, "float32") for method in METHODS]
        return lite + [Case(method, "ViT-B/16", 20, device, "float32") for method in ("coop", "pbprompt")]
    few = [Case(method, "ViT-B/16", 101, device, "float16") for method in METHODS]
    return few + [Case(method, "ViT-B/16", 1000, device, "float16") for method in ("coop", "pbprompt")]


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row a case."""
    rates: dict[str, float] = {}
    for case in cases(options):
        if case.dtype not in rates:
            dtype = getattr(torch, case.dtype)
            rates[case.dtype] = apart(case.device, matrix_rate, dtype, case.device, options.quick)
        yield row(case, rates[case.dtype])


def row(case: Case, rate: float) -> dict[str, Any]:
    """Both ways measured, compared, and put beside the floor."""
    ours, flops, batch = apart(case.device, ours_cost, case)
    floor = flops / rate
    found: dict[str, Any] = {
        "method": case.method,
        "backbone": case.backbone,
        "precision": case.dtype,
        "classes": case.classes,
        "batch": batch,
        "ours_ms": 1e3 * ours.seconds,
        "ours_gib": ours.gib,
        "ours_repeats": ours.repeats,
        "floor_gflop": flops / 1e9,
        "product_tflops": rate / 1e12,
        "floor_ms": 1e3 * floor,
        "floor_share": floor / ours.seconds,
    }
    try:
        plain = apart(case.device, plain_cost, case)
    except DidNotFitError as error:
        return found | {"plain_ms": None, "note": f"the plain way did not fit: {error}"}
    found |= {
        "plain_ms": 1e3 * plain.seconds,
        "plain_gib": plain.gib,
        "plain_repeats": plain.repeats,
        "ratio": plain.seconds / ours.seconds,
        "difference": apart(case.device, difference, case),
    }
    if case.cuda:
        found["difference_float32"] = apart(case.device, difference, replace(case, dtype="float32"))
    return found


def ours_cost(case: Case) -> tuple[Cost, int, int]:
    """The library's step from cached features: its cost, its floor in operations and its batch."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(case, backbone)
    batch = random_batch(backbone, case.classes, method.images_a_step(SHOTS * case.classes))
    cost = measure(LibraryStep(method, batch), case.device, limit=case.limit)
    size, patches = batch.images.patches.shape[:2]
    return cost, step_flops(method, size, patches), size


class LibraryStep:
    """Gradients and optimiser, with other noise each time."""

    def __init__(self, method: Trained, batch: Batch) -> None:
        self.step = Step(method, SHOTS * len(method.classes))
        self.batch, self.seeds = batch, count()
        self.rows = torch.arange(len(batch.labels), device=batch.labels.device)

    def __call__(self) -> None:
        self.step(self.batch, self.rows, next(self.seeds), self.step.method.config.learning_rate)


def plain_cost(case: Case) -> Cost:
    """The image tower, every position of every prompt, the loss spelt out, torch's own optimiser."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(case, backbone)
    pixels = random_images(backbone, method.images_a_step(SHOTS * case.classes))
    labels = random_batch(backbone, case.classes, len(pixels)).labels
    loss, optimiser = PlainLoss(method, SHOTS * case.classes), plain_optimiser(method)
    generator = torch.Generator(case.device).manual_seed(NOISE_SEED)

    def step() -> None:
        with torch.no_grad():
            images = backbone.image(pixels)
        total = loss(Batch(images, labels), generator)
        optimiser.zero_grad()
        total.backward()
        optimiser.step()

    return measure(step, case.device, limit=case.limit)


def difference(case: Case) -> float:
    """The largest relative difference between both ways' losses and gradients, at the same noise."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(case, backbone)
    batch = random_batch(backbone, case.classes, method.images_a_step(SHOTS * case.classes))
    examples = SHOTS * case.classes
    step, rows = Step(method, examples), torch.arange(len(batch.labels), device=batch.labels.device)
    for _ in range(WARM_UP + 2):  # on CUDA the last is a replay
        ours = step(batch, rows, NOISE_SEED, rate=0.0)["total"].clone()
    values = [ours, *(parameter.grad.clone() for parameter in method.parameters())]  # type: ignore[union-attr]
    method.zero_grad()
    drawn_on = case.device if case.cuda and method.capturable else "cpu"
    theirs = PlainLoss(method, examples)(batch, torch.Generator(drawn_on).manual_seed(NOISE_SEED))
    theirs.backward()
    wanted = [theirs.detach(), *(parameter.grad for parameter in method.parameters())]
    return max(relative(one, other) for one, other in zip(values, wanted, strict=True))  # type: ignore[arg-type]


def relative(value: Tensor, wanted: Tensor) -> float:
    """‖value − wanted‖ / ‖wanted‖."""
    size, off = wanted.double().norm().item(), (value.double() - wanted.double()).norm().item()
    return off / size if size else math.inf if off else 0.0
