"""The text engine against the plain computation over all positions, on ViT-B/16's or SigLIP's text tower."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from pbprompt.bench.measure import apart, measure, take_device
from pbprompt.clip.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.clip.engine import TextEngine
from pbprompt.clip.prompts import Prompt
from pbprompt.clip.siglip import SiglipTextConfig
from pbprompt.clip.text import TextConfig
from pbprompt.clip.vit import VitConfig
from pbprompt.errors import InputError

PLAIN_SLICE = 50  # classes a slice of the plain way on a CPU: a thousand at once need over 24 GiB
VIT_B16_TEXT = TextConfig(77, 49408, 512, 8, 12)
TEXT_ONLY = BackboneConfig("ViT-B/16 text", 512, VitConfig(32, 16, 64, 1, 1), VIT_B16_TEXT)
SIGLIP_TEXT = SiglipTextConfig(64, 32000, 768, 12, 12, 3072)
SIGLIP_ONLY = BackboneConfig("SigLIP base text", 768, VitConfig(32, 16, 64, 1, 1), SIGLIP_TEXT, "gelu_tanh")
TOWERS = {"clip": TEXT_ONLY, "siglip": SIGLIP_ONLY}

# Tokens of a class name, as ImageNet's thousand names have them: 2.2 on average.
NAME_LENGTHS = {1: 35, 2: 35, 3: 15, 4: 9, 5: 4, 6: 1, 8: 1}


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

    def sets(self, contexts: Tensor) -> Tensor:
        """Features [n, C, d] under n contexts [n, b, w], in one call of the tower."""
        n, classes = len(contexts), len(self.lengths)
        before, after = (part.repeat(n, 1, 1) for part in (self.before, self.after))
        own = contexts.repeat_interleave(classes, dim=0).to(before.dtype)
        features = self.backbone.text(torch.cat([before, own, after], dim=1), self.lengths.repeat(n))
        return features.unflatten(0, (n, classes))


@dataclass(frozen=True)
class Setting:
    """What one measurement runs."""

    way: str  # "plain" or "engine"
    context: str  # "shared" or "per class"
    classes: int
    ctx: int
    device: str
    dtype: str
    repeats: int
    tower: str = "clip"


@dataclass(frozen=True)
class TextCost:
    """Median seconds of a forward, of a forward and backward, and the latter's peak memory in GiB."""

    forward: float
    step: float
    gib: float


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
        plain, engine = (
            apart(device, _measure, Setting(way, context, classes, ctx, device, dtype, repeats, tower))
            for way in ("plain", "engine")
        )
        for name, slow, fast in (
            ("forward", plain.forward, engine.forward),
            ("forward+backward", plain.step, engine.step),
        ):
            rows.append(
                {
                    "context": context,
                    "pass": name,
                    "plain_seconds": slow,
                    "engine_seconds": fast,
                    "speedup": slow / fast,
                    "plain_gib": plain.gib,
                    "engine_gib": engine.gib,
                    "memory_ratio": plain.gib / engine.gib,
                }
            )
    machine = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
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


def _measure(setting: Setting) -> TextCost:
    backbone = random_backbone(TOWERS[setting.tower]).to(setting.device, getattr(torch, setting.dtype))
    prompts = imagenet_like_prompts(setting.classes, setting.ctx, setting.tower)
    shape = (setting.classes,) if setting.context == "per class" else ()
    context = 0.02 * torch.randn(*shape, setting.ctx, backbone.text_width, device=setting.device)
    context.requires_grad_()
    if setting.way == "engine":
        engine = TextEngine(backbone, prompts)
        runs: list[Callable[[], Tensor]] = [lambda: engine(context)]
    else:
        size = PLAIN_SLICE if setting.device == "cpu" else setting.classes
        text = PlainText(backbone, prompts, setting.ctx)
        runs = [partial(text, context, start, start + size) for start in range(0, setting.classes, size)]

    def forward() -> None:
        with torch.no_grad():
            for run in runs:
                run()

    def step() -> None:
        for run in runs:
            out = run()
            out.backward(torch.ones_like(out))

    limit = float("inf") if len(runs) == 1 else 0.0  # the plain way's slices are its repeats
    cost = measure(step, setting.device, setting.repeats, limit)
    seconds = measure(forward, setting.device, setting.repeats, limit).seconds
    return TextCost(seconds, cost.seconds, cost.gib * len(runs))
