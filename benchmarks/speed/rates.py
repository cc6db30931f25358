"""Work against time: images per second, one whole run; what this machine is and what it can reach at all."""

import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import torch

from benchmarks.speed.measuring import measure, on_cuda, wait
from pbprompt import __version__
from pbprompt.research.provenance import commit, cpuinfo, machine

T = TypeVar("T")


def rate(run: Callable[[], object], images: int, device: str, limit: float = 2.0) -> float:
    """Images/s of a run over so many images."""
    return images / measure(run, device, limit=limit).seconds


def seconds_of(run: Callable[[], T], device: str) -> tuple[float, T]:
    """One run, timed whole."""
    wait(device)
    start = time.perf_counter()
    result = run()
    wait(device)
    return time.perf_counter() - start, result


def matrix_rate(dtype: torch.dtype, device: str, quick: bool = False) -> float:
    """FLOP/s of one large matrix product: what this machine can be expected to reach."""
    side = 256 if quick else 8192 if on_cuda(device) else 2048
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / measure(lambda: a @ b, device).seconds


def stamp(device: str, quick: bool) -> dict[str, Any]:
    """What every part of the results carries."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "pbprompt": __version__}
    if on_cuda(device):
        versions["cuda"] = str(torch.version.cuda)
    return {
        "machine": machine(device),
        "versions": versions,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.speed", *sys.argv[1:]]),
        "quick": quick,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # before it began
    }


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 by itself; without, it is slower than float32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpuinfo("flags").split()))
