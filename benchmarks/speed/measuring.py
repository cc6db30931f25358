"""Time and peak memory of a piece of work, on a CPU in a process of its own, so that the peak is its own too.

Seconds are medians; memory is the peak above what the work started with.
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
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from pbprompt.errors import InputError

GIB = 1 << 30
AT_A_TIME = 5  # runs between two looks at the clock on CUDA: nothing waits for the device within training
WARM_UP = 6  # untimed runs on CUDA: libraries settle, and steps are captured as graphs

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
