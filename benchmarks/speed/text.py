"""The text engine against the plain computation over all positions, on towers of random weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.measuring import Cost, apart, measure, on_cuda, take_device
from pbprompt.errors import InputError
from pbprompt.research.costs import NAME_LENGTHS, VIT_B16_TEXT
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import Prompt
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NO_IMAGES = VitConfig(32, 16, 64, 1, 1)
SIGLIP_TEXT = TextConfig(64, 32000, 768, 12, 12, causal=False, reads_last=True)
TOWERS = {
    "clip": BackboneConfig("ViT-B/16 text", 512, NO_IMAGES, VIT_B16_TEXT),
    "siglip": BackboneConfig("SigLIP base text", 768, NO_IMAGES, SIGLIP_TEXT, "gelu_tanh"),
}
PLAIN_SLICE = 50  # classes per slice of the plain way on a CPU: a thousand at once need over 24 GiB


class PlainText:
    """[SOS] context name [.] [EOT] and padding, through every block at every position."""

    def __init__(self, backbone: Backbone, prompts: list[Prompt], slots: int) -> None:
        self.backbone = backbone
        full = backbone.context_length
        ids = [[max(token, 0) for token in prompt] + [0] * (full - len(prompt)) for prompt in prompts]
        embedded = backbone.token_embedding(torch.tensor(ids, device=backbone.device))
        start = next(at for at, token in enumerate(prompts[0]) if token < 0)
        self.before, self.after = embedded[:, :start], embedded[:, start + slots :]
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=backbone.device)

    def __call__(self, context: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Features [C, d] of all classes (or of start..stop); context [b, w], or [C, b, w]."""
        before, after, lengths = (part[start:stop] for part in (self.before, self.after, self.lengths))
        own = context.expand(len(before), -1, -1) if context.ndim == 2 else context[start:stop]
        return self.backbone.text(torch.cat([before, own.to(before.dtype), after], dim=1), lengths)


def bench_text(
    classes: int, ctx: int, *, device: str, dtype: str, repeats: int, tower: str = "clip"
) -> dict[str, Any]:
    """Time and peak memory of both ways, for a context shared by all classes and for one per class."""
    take_device(device)
    if tower not in TOWERS:
        raise InputError(f"tower {tower!r}: choose {' or '.join(TOWERS)}")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise InputError(f"dtype {dtype!r}: choose float32, bfloat16 or float16")
    rows = []
    for context in ("per class", "shared"):
        shape = (classes if context == "per class" else 1, ctx)
        plain, engine = (
            apart(device, _measure, way, shape, classes, device, dtype, repeats, tower)
            for way in ("plain", "engine")
        )
        for name in ("forward", "forward+backward"):
            slow, fast = plain[name], engine[name]
            rows.append(
                {
                    "context": context,
                    "pass": name,
                    "plain_seconds": slow.seconds,
                    "engine_seconds": fast.seconds,
                    "speedup": slow.seconds / fast.seconds,
                    "plain_gib": plain["forward+backward"].gib,
                    "engine_gib": engine["forward+backward"].gib,
                    "memory_ratio": plain["forward+backward"].gib / engine["forward+backward"].gib,
                }
            )
    machine = torch.cuda.get_device_name(device) if on_cuda(device) else "CPU"
    sliced = (
        f"the plain way runs {PLAIN_SLICE} classes at a time, its memory is one slice's times their number; "
    )
    return {
        "title": f"{TOWERS[tower].name} tower, random weights, {classes} classes, {ctx} context vectors, "
        f"{dtype}, {machine}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "rows": rows,
        "note": f"medians of up to {repeats}; memory: peak of forward+backward above the weights; "
        + (sliced if device == "cpu" and classes > PLAIN_SLICE else "")
        + "names have ImageNet's token lengths",
    }


def imagenet_like_prompts(classes: int, ctx: int, tower: str = "clip") -> list[Prompt]:
    """[SOS] slots, name of random tokens, [.] [EOT]; SigLIP's without [SOS] and the full stop."""
    random = Random(0)
    lengths = random.choices(list(NAME_LENGTHS), list(NAME_LENGTHS.values()), k=classes)
    slots = [-(k + 1) for k in range(ctx)]
    if tower == "siglip":
        return [[*slots, *random.choices(range(320, 32000), k=n), 1] for n in lengths]
    return [[49406, *slots, *random.choices(range(320, 40000), k=n), 269, 49407] for n in lengths]


def _measure(
    way: str, shape: tuple[int, int], classes: int, device: str, dtype: str, repeats: int, tower: str
) -> dict[str, Cost]:
    """One way, "plain" or "engine", by pass; `shape`: classes with a context of their own (or 1), vectors."""
    backbone = random_backbone(TOWERS[tower]).to(device, getattr(torch, dtype))
    contexts, ctx = shape
    prompts = imagenet_like_prompts(classes, ctx, tower)
    context = 0.02 * torch.randn(contexts, ctx, backbone.text_width, device=device)
    context = (context if contexts > 1 else context[0]).requires_grad_()
    if way == "engine":
        engine = TextEngine(backbone, prompts)
        runs: list[Callable[[], Tensor]] = [lambda: engine(context)]
    else:
        size = PLAIN_SLICE if device == "cpu" else classes
        text = PlainText(backbone, prompts, ctx)
        runs = [partial(text, context, start, start + size) for start in range(0, classes, size)]

    def forward() -> None:
        with torch.no_grad():
            for run in runs:
                run()

    def step() -> None:
        for run in runs:
            out = run()
            out.backward(torch.ones_like(out))

    limit = float("inf") if len(runs) == 1 else 0.0  # the plain way's slices are its repeats
    cost = measure(step, device, repeats, limit)
    cost = replace(cost, gib=cost.gib * len(runs))
    return {"forward+backward": cost, "forward": measure(forward, device, repeats, limit)}
