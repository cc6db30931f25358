"""A Ray cluster: one that runs already, by its address, or one started on this machine for the sweep.

Workers import the installed package and read the data under the same paths; a shared cache folder
(PBPROMPT_CACHE) spares every machine but one the encoding. Results come back to the driver, so nothing else
need be shared.
"""

import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pbprompt.errors import InputError, first_line, needing
from pbprompt.executors.executor import Ended, Job, attempt, ended

ANSWER_SECONDS = 10.0


class RayExecutor:
    """One task a job, on a core and `gpus_per_run` GPUs, which may be a fraction.

    A worker or a machine that is lost ends its jobs with an error; Ray itself retries nothing, so that a
    run is tried as often here as with any other executor. `jobs` bounds the cores of a cluster that is
    started here.
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
        return [ended(self._jobs.pop(one), partial(self._ray.get, one), lost) for one in ready]

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
        rooms = [here.get("CPU", 0.0)]
        if self._gpus:
            rooms.append(here.get("GPU", 0.0) / self._gpus)
        return int(min(rooms))


def _connect(ray: Any, address: str | None, jobs: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        ray.init(address="local", num_cpus=jobs, include_dashboard=False, **quiet)
        return
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        if place.hostname and place.port:  # Ray itself would go on trying for minutes
            socket.create_connection((place.hostname, place.port), ANSWER_SECONDS).close()
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Ray address {address}: no cluster lets us in ({first_line(error)}): check the address, and "
            "where the cluster wants a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
