"""Processes of this machine, each with a GPU or a share of the cores: `Workers`, each asked by a thread."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from pbprompt.errors import InputError
from pbprompt.executors.executor import Ended, Job, attempt, ended
from pbprompt.vision.images.workers import Workers, available_cpus

MOST_JOBS = 4  # by default: each process has its own copy of the backbone in memory


class LocalExecutor:
    """`jobs` processes; by default one a GPU, or one a core up to four."""

    def __init__(self, jobs: int | None = None, device: str = "cpu") -> None:
        self._environments = _environments(jobs, device)
        self._workers = Workers(len(self._environments), environments=self._environments)
        self._threads = ThreadPoolExecutor(len(self._environments))
        self._queue: list[Job] = []
        self._running: dict[Future[tuple[Any, str]], Job] = {}

    def submit(self, jobs: Sequence[Job]) -> None:
        self._queue = sorted([*self._queue, *jobs], key=lambda job: job.number)

    def wait(self, timeout: float) -> list[Ended]:
        self._hand_out()
        done, _ = wait(self._running, timeout, FIRST_COMPLETED)
        # lost: what a job gave, or what it was asked, cannot be sent
        results = [ended(self._running.pop(future), future.result, lost=Exception) for future in done]
        self._hand_out()  # the others go on while the results are kept
        return results

    def running(self) -> int:
        return len(self._running)

    def close(self) -> None:
        self._workers.close()
        self._threads.shutdown(cancel_futures=True)

    def _hand_out(self) -> None:
        while self._queue and len(self._running) < self._workers.count:
            job = self._queue.pop(0)
            self._running[self._threads.submit(self._attempt, job)] = job

    def _attempt(self, job: Job) -> tuple[Any, str]:
        try:
            return self._workers.ask(attempt, job.function, job.arguments)
        except EOFError as death:
            return None, _death(*death.args)


def _death(code: int) -> str:
    if code < 0:
        how = signal.Signals(-code).name
        hint = " (out of memory?)" if how == "SIGKILL" else ""
        return f"the worker process was ended by {how}{hint}"
    return f"the worker process ended with exit code {code}"


def _environments(jobs: int | None, device: str) -> list[dict[str, str]]:
    """What each worker finds in its environment, set before it imports torch."""
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs is {jobs}: give 1 or more")
    cores = available_cpus()
    gpus = _gpus() if device == "cuda" else []  # "cuda:1" names one GPU for all
    count = jobs or len(gpus) or min(cores, MOST_JOBS)
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // count))
    seen = [{"CUDA_VISIBLE_DEVICES": name} for name in gpus] or [{}]
    return [{"OMP_NUM_THREADS": threads, **seen[slot % len(seen)]} for slot in range(count)]


def _gpus() -> list[str]:
    """The GPUs this process may use, by the names CUDA_VISIBLE_DEVICES takes."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
