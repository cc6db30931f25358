"""Slurm, through submitit: the runs of a dataset are one job array.

The folder and the data must be seen by the nodes under the same paths. What sbatch takes from its environment
applies: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and so on.
"""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, needing
from pbprompt.executors.executor import Ended, Job, attempt, ended

MINUTES = 24 * 60
CORES = 4
POLL_SECONDS = 0.2


class SlurmExecutor:
    """One Slurm job per run, at most `jobs` at a time; scripts, logs and results pass through `folder`.

    `cluster` is submitit's: "slurm"; "local" starts processes here instead, to try things out.
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
            timeout_min=MINUTES,
            cpus_per_task=CORES,
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
        return [ended(job, handle.result, self._lost) for handle, job in ready]

    def running(self) -> int:
        return sum(handle.state == "RUNNING" for handle, _ in self._jobs)

    def close(self) -> None:
        for handle, _ in self._jobs:
            handle.cancel()
        self._jobs = []
