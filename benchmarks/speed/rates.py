"""Work against time: images per second, one whole run, and what this machine can reach at all."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from pbprompt.bench import measure, on_cuda, wait

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


def matrix_rate(dtype: torch.dtype, device: str) -> float:
    """FLOP/s of one large matrix product: what this machine can be expected to reach."""
    side = 8192 if on_cuda(device) else 2048
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / measure(lambda: a @ b, device).seconds
