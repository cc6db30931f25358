"""The Slurm executor on submitit's local processes, which take the same calls."""

import os
import time
from contextlib import closing

import pytest

from pbprompt.errors import InputError
from pbprompt.executors import Job, SlurmExecutor

pytest.importorskip("submitit")


def ends_of(executor, count):
    """So many jobs that ended, by their ids."""
    ended = {}
    while len(ended) < count:
        ended |= {one.job.id: one for one in executor.wait(60)}
    return ended


@pytest.mark.slow
def test_values_errors_and_deaths_come_back_and_a_job_may_be_given_again(tmp_path):
    fine, wrong, dead = (
        Job("fine", 0, hex, (255,)),
        Job("wrong", 1, int, ("x",)),
        Job("dead", 2, os._exit, (7,)),
    )
    with closing(SlurmExecutor(tmp_path, jobs=2, cluster="local")) as executor:
        executor.submit([fine, wrong, dead])
        ended = ends_of(executor, 3)
        executor.submit([fine])
        again = ends_of(executor, 1)["fine"]
    assert ended["fine"].value == again.value == "0xff" and not ended["fine"].error
    assert "ValueError: invalid literal" in ended["wrong"].error
    assert "UncompletedJobError" in ended["dead"].error


def test_closing_cancels_what_runs(tmp_path):
    executor, started = SlurmExecutor(tmp_path, cluster="local"), tmp_path / "started"
    endless = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(36_000)"
    executor.submit([Job("long", 0, exec, (endless,))])
    try:
        while not started.exists():  # submitit forgets a task that is cancelled before it has begun
            time.sleep(0.05)
        assert executor.wait(0.1) == [] and executor.running() == 1
        handle = executor._jobs[0][0]
    finally:
        executor.close()
    assert handle._process.wait() != 0


def test_without_sbatch_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no sbatch here"):
        SlurmExecutor(tmp_path)
