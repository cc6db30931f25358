"""Behind `pbprompt bench`: the text engine against the plain computation over all positions, in one run.

Seconds are medians; memory is the peak of one piece of work above what it started with. On a CPU the work
runs in a process of its own, so that the peak is its own too.
"""

import gc
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from pbprompt.clip.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.clip.engine import TextEngine
from pbprompt.clip.prompts import Prompt
from pbprompt.clip.siglip import SiglipTextConfig
from pbprompt.clip.vit import VitConfig
from pbprompt.errors import InputError
from pbprompt.report.cost import NAME_LENGTHS, VIT_B16_TEXT

GIB = 1 << 30
AT_A_TIME = 5  # runs between two looks at the clock on CUDA: nothing waits for the device within training
WARM_UP = 6  # untimed runs on CUDA: libraries settle, and steps are captured as graphs
NO_IMAGES = VitConfig(32, 16, 64, 1, 1)
SIGLIP_TEXT = SiglipTextConfig(64, 32000, 768, 12, 12, 3072)
TOWERS = {
    "clip": BackboneConfig("ViT-B/16 text", 512, NO_IMAGES, VIT_B16_TEXT),
    "siglip": BackboneConfig("SigLIP base text", 768, NO_IMAGES, SIGLIP_TEXT, "gelu_tanh"),
}
PLAIN_SLICE = 50  # classes per slice of the plain way on a CPU: a thousand at once need over 24 GiB

P = ParamSpec("P")
T = TypeVar("T")


class DidNotFitError(Exception):
    """What was measured needs more memory than there is."""


@dataclass(frozen=True)
class Cost:
    """Median seconds, how many timings they are the median of, and the peak of memory above the start's."""

    seconds: float
    repeats: int
    gib: float


def on_cuda(device: str) -> bool:
    return device.startswith("cuda")


def take_device(device: str) -> None:
    """Refuse a device that is not there; make a GPU the current one, of which memory is counted."""
    if device != "cpu" and not on_cuda(device):
        raise InputError(f"device {device!r}: choose cpu, cuda or cuda:N")
    if on_cuda(device) and not torch.cuda.is_available():
        raise InputError(f"device {device!r}: torch sees no CUDA device here: choose cpu")
    if on_cuda(device):
        torch.cuda.set_device(torch.device(device).index or 0)


def measure(run: Callable[[], object], device: str, repeats: int = 10, limit: float = 2.0) -> Cost:
    """Run until `repeats` timings are there or `limit` seconds are spent.

    On a CPU the first run counts only where it alone is longer than the limit; else it is the warm-up.
    """
    before = memory_now(device)
    if on_cuda(device):
        for _ in range(WARM_UP):
            run()
        at_a_time, timings = AT_A_TIME, []
    else:
        at_a_time = 1
        first = _timed(run, device, 1)
        timings = [first] if first > limit else []
    while not timings or (len(timings) < repeats and sum(timings) * at_a_time < limit):
        timings.append(_timed(run, device, at_a_time))
    return Cost(statistics.median(timings), len(timings), (memory_peak(device) - before) / GIB)


def _timed(run: Callable[[], object], device: str, times: int) -> float:
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait(device)
    return (time.perf_counter() - start) / times


def apart(device: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a CPU in a process of its own, so that its peak of memory is its own."""
    if on_cuda(device):
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise DidNotFitError(str(error).splitlines()[0]) from None
        finally:
            gc.collect()
            torch.cuda.empty_cache()
    with ProcessPoolExecutor(1, mp_context=processes(function.__module__)) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:  # as the kernel ends a process when memory is short
            raise DidNotFitError("its process was ended") from None
        except RuntimeError as error:
            if "can't allocate memory" in str(error):
                raise DidNotFitError(str(error).splitlines()[0]) from None
            raise


def processes(module: str) -> multiprocessing.context.BaseContext:
    """Processes that start clean; where there is fork, off one that has the module loaded and nothing run."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch's optimisers would import the compiler, a second's work, in every process anew
    context.set_forkserver_preload(["torch._dynamo", module])
    return context


def wait(device: str) -> None:
    """Until the device has done all it was given."""
    if on_cuda(device):
        torch.cuda.synchronize()


def memory_now(device: str) -> int:
    """Bytes in use; on CUDA the peak starts anew."""
    gc.collect()
    if on_cuda(device):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return memory_peak(device)
    return pages * resource.getpagesize()


def memory_peak(device: str) -> int:
    """The most bytes in use: on a CPU since the process started, on CUDA since `memory_now`."""
    if on_cuda(device):
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
