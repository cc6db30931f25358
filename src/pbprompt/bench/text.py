"""The text engine against the plain computation over all positions, on ViT-B/16's text tower."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from pbprompt.clip.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.clip.engine import TextEngine
from pbprompt.clip.prompts import Prompt
from pbprompt.clip.text import TextConfig
from pbprompt.clip.vit import VitConfig
from pbprompt.errors import InputError

GIB = 1 << 30
# Tokens of a class name, as ImageNet's thousand names have them: 2.2 on average.
NAME_LENGTHS = {1: 35, 2: 35, 3: 15, 4: 9, 5: 4, 6: 1, 8: 1}
PLAIN_SLICE = 50  # classes a slice of the plain way on a CPU: a thousand at once need over 24 GiB


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


@dataclass(frozen=True)
class Cost:
    """Median seconds of a forward, of a forward and backward, and the latter's peak memory in GiB."""

    forward: float
    step: float
    gib: float


def bench_text(classes: int, ctx: int, *, device: str, dtype: str, repeats: int) -> dict[str, Any]:
    """Time and peak memory of both ways, for a context shared by all classes and for one a class."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {device}: torch sees no CUDA device here; use --device cpu")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise InputError(f"--dtype {dtype}: choose float32, bfloat16 or float16")
    rows = []
    for context in ("per class", "shared"):
        plain, engine = (
            _measured_apart(Setting(way, context, classes, ctx, device, dtype, repeats))
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
        "title": f"ViT-B/16 text tower, random weights, {classes} classes, {ctx} context vectors, {dtype}, "
        f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "rows": rows,
        "note": f"medians of {repeats}; memory: peak of forward+backward above the weights; "
        + (sliced if device == "cpu" and classes > PLAIN_SLICE else "")
        + "names have ImageNet's token lengths",
    }


def vit_b16_text(dtype: torch.dtype, device: str) -> Backbone:
    """A backbone with ViT-B/16's text tower and a token image tower, random weights."""
    config = BackboneConfig(
        "ViT-B/16 text", 512, VitConfig(32, 16, 64, 1, 1), TextConfig(77, 49408, 512, 8, 12)
    )
    return random_backbone(config).to(device=device, dtype=dtype)


def imagenet_like_prompts(classes: int, ctx: int) -> list[Prompt]:
    """[SOS] slots, name of random tokens, [.] [EOT]."""
    random = Random(0)
    lengths = random.choices(list(NAME_LENGTHS), list(NAME_LENGTHS.values()), k=classes)
    slots = [-(k + 1) for k in range(ctx)]
    return [[49406, *slots, *random.choices(range(320, 40000), k=n), 269, 49407] for n in lengths]


def _plain_features(
    backbone: Backbone, prompts: list[Prompt], context: Tensor, start: int, stop: int
) -> Tensor:
    """Features of prompts start..stop as the usual implementations make them: every position computed."""
    chosen = prompts[start:stop]
    full = backbone.context_length
    ids = torch.tensor([[max(t, 0) for t in prompt] + [0] * (full - len(prompt)) for prompt in chosen])
    embedded = backbone.token_embedding(ids.to(backbone.device))
    own = context.expand(len(chosen), -1, -1) if context.ndim == 2 else context[start:stop]
    after = embedded[:, 1 + context.shape[-2] :]
    filled = torch.cat([embedded[:, :1], own.to(embedded.dtype), after], dim=1)
    return backbone.text(filled, torch.tensor([len(prompt) for prompt in chosen], device=backbone.device))


def _measured_apart(setting: Setting) -> Cost:
    """Measure on a CPU in a process of its own, so that its peak of memory is its own."""
    if setting.device != "cpu":
        return _measure(setting)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, setting).result()


def _measure(setting: Setting) -> Cost:
    backbone = vit_b16_text(getattr(torch, setting.dtype), setting.device)
    prompts = imagenet_like_prompts(setting.classes, setting.ctx)
    shape = (setting.classes,) if setting.context == "per class" else ()
    context = 0.02 * torch.randn(*shape, setting.ctx, backbone.text_width, device=setting.device)
    context.requires_grad_()
    slices = 1
    if setting.way == "engine":
        engine = TextEngine(backbone, prompts)
        runs: list[Callable[[], Tensor]] = [lambda: engine(context)]
    else:
        size = PLAIN_SLICE if setting.device == "cpu" else setting.classes
        starts = range(0, setting.classes, size)
        runs = [partial(_plain_features, backbone, prompts, context, start, start + size) for start in starts]
        slices = len(runs)

    def forward() -> None:
        with torch.no_grad():
            for run in runs:
                run()

    def step() -> None:
        for run in runs:
            out = run()
            out.backward(torch.ones_like(out))

    # The plain way on a CPU is slow and long enough to be timed once; its slices are its repeats.
    repeats = 1 if slices > 1 else setting.repeats
    before = _memory_now(setting.device)
    seconds = _timed(step, repeats, setting.device)
    gib = (_memory_peak(setting.device) - before) * slices / GIB
    return Cost(_timed(forward, repeats, setting.device), seconds, gib)


def _timed(run: Callable[[], None], repeats: int, device: str) -> float:
    warm_up = 6 if device.startswith("cuda") else 0  # past the capture of CUDA graphs
    for _ in range(warm_up):
        run()
    seconds = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _memory_now(device: str) -> int:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return _memory_peak(device)
    return pages * resource.getpagesize()


def _memory_peak(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
