"""The Slurm executor on submitit's local processes, which take the same calls."""

import time
from contextlib import closing
from functools import partial

import pytest
from sweep_stubs import encode, tries, work, write_plan

from pbprompt.errors import InputError
from pbprompt.runs.config import RunConfig
from pbprompt.runs.store import RunStore
from pbprompt.sweep import prepare_runs, sweep
from pbprompt.sweep.executor import Job
from pbprompt.sweep.slurm import SlurmExecutor

pytest.importorskip("submitit")
RUNS = [RunConfig(task="few-shot", dataset="sample", shots=1, seed=seed) for seed in (1, 2, 3)]


@pytest.mark.slow
def test_runs_come_back_and_what_raises_or_dies_is_tried_once_more(tmp_path, stub_path):
    write_plan(tmp_path, seed1=["kill", "ok"], seed2=["raise"])
    store = RunStore(tmp_path / "runs")
    with closing(SlurmExecutor(tmp_path / "slurm", jobs=2, cluster="local")) as executor:
        outcome = sweep(
            RUNS,
            backbone="lite",
            root=tmp_path,
            store=store,
            executor=executor,
            progress=False,
            work=partial(work, tmp_path),
            encode=partial(encode, tmp_path),
        )
    first, second, third = prepare_runs(RUNS, "lite", tmp_path)
    assert set(outcome.done) == {first, third} and outcome.failed == (second,), store.failures()
    assert len(set(tries(tmp_path, 1))) == 2 and len(tries(tmp_path, 2)) == 2
    assert store.arrays(third)["x"].tolist() == [3, 3, 3]
    assert "ArithmeticError: seed 2 went wrong" in store.failures()[0].traceback


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
