"""Processes of this machine, each with a GPU or a share of the cores.

A worker holds one job at a time and talks over its own pipe, so that one that dies takes nothing along: the
end of its pipe tells, the others go on, and a fresh one takes its place.
"""

import contextlib
import heapq
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import connection, resource_tracker

from pbprompt.data.workers import available_cpus
from pbprompt.errors import InputError, warn_in_sentences
from pbprompt.sweep.executor import Ended, Job, attempt

MOST_JOBS = 4  # by default: each process has its own copy of the backbone in memory
GRACE_SECONDS = 5.0
_spawn = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA


class LocalExecutor:
    """`jobs` processes; by default one a GPU, or one a core up to four."""

    def __init__(self, jobs: int | None = None, device: str = "cpu") -> None:
        self._environments = _environments(jobs, device)
        self._workers: dict[int, _Worker] = {}
        self._queue: list[tuple[int, int, Job]] = []
        self._submitted = 0

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._submitted += 1
            heapq.heappush(self._queue, (job.number, self._submitted, job))

    def wait(self, timeout: float) -> list[Ended]:
        self._hand_out()
        busy = [worker for worker in self._workers.values() if worker.job]
        ready = connection.wait([worker.pipe for worker in busy], timeout)
        ended = [worker.result() for worker in busy if worker.pipe in ready]
        self._hand_out()  # the others go on while the results are kept
        return ended

    def running(self) -> int:
        return sum(worker.job is not None for worker in self._workers.values())

    def close(self) -> None:
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            worker.stop()
        self._workers.clear()
        self._queue.clear()

    def _hand_out(self) -> None:
        free = [slot for slot in range(len(self._environments)) if self._is_free(slot)][: len(self._queue)]
        for slot in free:  # all start before the first has its job, which waits until it can take it
            if slot not in self._workers or self._workers[slot].gone():
                self._workers[slot] = _Worker(self._environments[slot])
        for slot in free:
            self._workers[slot].give(heapq.heappop(self._queue)[-1])

    def _is_free(self, slot: int) -> bool:
        return slot not in self._workers or self._workers[slot].job is None


class _Worker:
    """One process, and the job it has."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.job: Job | None = None
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_serve, args=(theirs,), daemon=True)
        with _environment(environment), _without_interrupts():
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def gone(self) -> bool:
        return self.job is None and not self.process.is_alive()

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # it died just now: the end of the pipe tells
            self.pipe.send((job.function, job.arguments))

    def result(self) -> Ended:
        """What it sent, or the news of its death."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            value, error = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            return Ended(job, error=_death(self.process.exitcode))
        return Ended(job, value, error)

    def stop(self) -> None:
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(pipe: "connection.Connection") -> None:
    """A worker's life: jobs come in, results go out, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then stops its workers
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    warn_in_sentences()
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        except Exception:  # a function that cannot be imported here
            pipe.send((None, traceback.format_exc()))
            continue
        result = attempt(function, arguments)
        try:
            pipe.send(result)
        except (pickle.PicklingError, TypeError, AttributeError):
            pipe.send((None, traceback.format_exc()))


def _leave_with_parent() -> None:
    """A sweep that is killed leaves no worker behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
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
    environments = [{"OMP_NUM_THREADS": threads} for _ in range(count)]
    if gpus:
        for slot, environment in enumerate(environments):
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return environments


def _gpus() -> list[str]:
    """The GPUs this process may use, by the names CUDA_VISIBLE_DEVICES takes."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """A child inherits the environment of the moment it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back, for a child also while it imports; what came meanwhile arrives afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its first start would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
