"""Where jobs run: processes of this machine, a Ray cluster, Slurm.

Workers elsewhere import the installed package and read the data under the same paths; a shared cache folder
(PBPROMPT_CACHE) spares every machine but one the encoding. Results come back to whoever spreads the jobs.
"""

import math
import os
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pbprompt.errors import InputError, first_line, needing
from pbprompt.vision.images.workers import Workers, available_cpus

MOST_JOBS = 4  # by default: each process has its own copy of the backbone in memory
RAY_ANSWER_SECONDS = 10.0
SLURM_MINUTES = 24 * 60
SLURM_CORES = 4
POLL_SECONDS = 0.2


@dataclass(frozen=True, eq=False)
class Job:
    """A call to make elsewhere: an importable function and arguments that can be pickled.

    Where there is a choice, the lowest `number` goes first.
    """

    id: str
    number: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Ended:
    """What became of a job: its value, or the text of the error that ended it."""

    job: Job
    value: Any = None
    error: str = ""


class Executor(Protocol):
    """Runs jobs. A job may be given again after it ended, and then starts in a fresh or healthy worker."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs on; returns at once."""

    def wait(self, timeout: float) -> list[Ended]:
        """Jobs that ended since the last call; waits up to `timeout` seconds for the first."""

    def running(self) -> int:
        """How many jobs are under way, as far as is known."""

    def close(self) -> None:
        """Stop every worker, finished or not."""


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """(value, "") or (None, traceback): errors travel as text, since not every exception can be pickled."""
    try:
        return function(*arguments), ""
    except Exception:
        return None, traceback.format_exc()


def _ended(job: Job, result: Callable[[], Any], lost: type[Exception]) -> Ended:
    """The end of a job that was an `attempt` elsewhere: its `result` raises `lost` where its worker died."""
    try:
        return Ended(job, *result())
    except lost as error:
        return Ended(job, error=f"{type(error).__name__}: {error}")


class LocalExecutor:
    """`jobs` processes, each asked by a thread; by default one a GPU, or one a core up to four."""

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
        results = [_ended(self._running.pop(future), future.result, lost=Exception) for future in done]
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
    if code >= 0:
        return f"the worker process ended with exit code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the worker process was ended by {signal.Signals(-code).name}{hint}"


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


class RayExecutor:
    """A Ray cluster: one that runs already, by its address, or one started on this machine for the jobs.

    One task a job, on a core and `gpus_per_run` GPUs, which may be a fraction. A worker or a machine that is
    lost ends its jobs with an error; Ray itself retries nothing, so that a run is tried as often here as with
    any other executor. `jobs` bounds the cores of a cluster that is started here.
    """

    def __init__(
        self, address: str | None = None, gpus_per_run: float = 0.0, jobs: int | None = None
    ) -> None:
        with needing("executor ray needs Ray (local does not)", "ray"):
            import ray
        if not gpus_per_run >= 0 or (gpus_per_run > 1 and gpus_per_run % 1):
            raise InputError(f"gpus_per_run is {gpus_per_run}: give a fraction of one, or a whole number")
        self._ray = ray
        self._owner = not ray.is_initialized()
        self._gpus = gpus_per_run
        self._jobs: dict[Any, Job] = {}
        self._task = ray.remote(num_cpus=1, num_gpus=gpus_per_run, max_retries=0)(attempt)
        address = address or os.environ.get("RAY_ADDRESS")
        if self._owner:
            _connect(ray, address, jobs)
        if self._owner and not address and self._room() < 1:  # a cluster elsewhere may yet grow
            self.close()
            raise InputError(f"gpus_per_run is {gpus_per_run}: not so many here: give an address, or use cpu")

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._jobs[self._task.remote(job.function, job.arguments)] = job

    def wait(self, timeout: float) -> list[Ended]:
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        lost = self._ray.exceptions.RayError  # the worker or its machine died, or lost the result
        return [_ended(self._jobs.pop(one), partial(self._ray.get, one), lost) for one in ready]

    def running(self) -> int:
        return min(len(self._jobs), self._room())

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        if self._owner:
            self._ray.shutdown()

    def _room(self) -> int:
        """How many jobs the cluster can hold at once."""
        here = self._ray.cluster_resources()
        gpus = here.get("GPU", 0.0) / self._gpus if self._gpus else math.inf
        return int(min(here.get("CPU", 0.0), gpus))


def _connect(ray: Any, address: str | None, jobs: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        ray.init(address="local", num_cpus=jobs, include_dashboard=False, **quiet)
        return
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        if place.hostname and place.port:  # Ray itself would go on trying for minutes
            socket.create_connection((place.hostname, place.port), RAY_ANSWER_SECONDS).close()
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Ray address {address}: no cluster lets us in ({first_line(error)}): check the address, and "
            "where the cluster wants a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error


class SlurmExecutor:
    """Slurm, through submitit: one Slurm job per run, at most `jobs` at a time; those given at once are one
    job array. Scripts, logs and results pass through `folder`, which the nodes must see as well.

    What sbatch takes from its environment applies: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and so
    on. `cluster` is submitit's: "slurm"; "local" starts processes here instead, to try things out.
    """

    def __init__(
        self, folder: Path, gpus_per_run: float = 0.0, jobs: int | None = None, cluster: str = "slurm"
    ) -> None:
        with needing("executor slurm needs submitit (local does not)", "slurm"):
            import submitit
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError(
                "executor slurm: there is no sbatch here: run on a machine that submits to Slurm"
            )
        self._lost = submitit.core.utils.UncompletedJobError  # ended by Slurm, or died
        self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        self._executor.update_parameters(
            name="pbprompt",
            timeout_min=SLURM_MINUTES,
            cpus_per_task=SLURM_CORES,
            gpus_per_node=math.ceil(gpus_per_run),
            **({"slurm_array_parallelism": jobs} if jobs else {}),
        )
        self._jobs: list[tuple[Any, Job]] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._executor.batch():  # becomes one array
            handles = [self._executor.submit(attempt, job.function, job.arguments) for job in jobs]
        self._jobs += zip(handles, jobs, strict=True)

    def wait(self, timeout: float) -> list[Ended]:
        deadline = time.monotonic() + timeout
        while not (ready := [pair for pair in self._jobs if pair[0].done()]):
            if time.monotonic() >= deadline:
                return []
            time.sleep(POLL_SECONDS)
        self._jobs = [pair for pair in self._jobs if pair not in ready]
        return [_ended(job, handle.result, self._lost) for handle, job in ready]

    def running(self) -> int:
        return sum(handle.state == "RUNNING" for handle, _ in self._jobs)

    def close(self) -> None:
        for handle, _ in self._jobs:
            handle.cancel()
        self._jobs = []
