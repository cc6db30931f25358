"""A sweep on a real Ray of two cores, started for the test."""

import os
from contextlib import closing
from functools import partial

import pytest
from sweep_stubs import encode, tries, work, write_plan

from pbprompt.errors import InputError
from pbprompt.executors import RayExecutor
from pbprompt.research.runs import RunConfig, RunStore
from pbprompt.research.sweep import prepare_runs, sweep

ray = pytest.importorskip("ray")
RUNS = [RunConfig(task="few-shot", dataset="sample", shots=1, seed=seed) for seed in (1, 2, 3, 4)]


@pytest.fixture
def no_cluster(monkeypatch, stub_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    yield
    ray.shutdown()


@pytest.mark.slow
def test_a_worker_killed_mid_run_is_replaced_and_its_run_done_again(tmp_path, no_cluster):
    write_plan(tmp_path, seed1=["kill", "ok"], seed2=["raise"], seed4=["kill"])
    store = RunStore(tmp_path / "runs")
    with closing(RayExecutor(jobs=2)) as executor:
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
    assert not ray.is_initialized(), "the cluster that was started is stopped"
    first, second, third, fourth = prepare_runs(RUNS, "lite", tmp_path)
    assert set(outcome.done) == {first, third} and set(outcome.failed) == {second, fourth}
    assert len(set(tries(tmp_path, 1))) == 2 and len(tries(tmp_path, 2)) == len(tries(tmp_path, 4)) == 2
    records = {record.config.seed: record for record in store.records()}
    assert set(records) == {1, 3} and records[1].machine["worker"] == tries(tmp_path, 1)[1] != os.getpid()
    assert store.arrays(third)["x"].tolist() == [3, 3, 3]
    failures = {failure.id: failure.traceback for failure in store.failures()}
    assert "ArithmeticError: seed 2 went wrong" in failures[second] and "Crashed" in failures[fourth]


@pytest.mark.slow
def test_a_running_cluster_is_joined_and_left_running(no_cluster):
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, logging_level="ERROR")
    with closing(RayExecutor(gpus_per_run=0.25)) as executor:
        assert executor._room() == 1, "one core"
    assert ray.is_initialized()
    ray.shutdown()
    with pytest.raises(InputError, match="gpus_per_run is 1"):
        RayExecutor(gpus_per_run=1, jobs=1)
    assert not ray.is_initialized()


def test_an_address_without_a_cluster_and_odd_shares_are_one_line(no_cluster):
    with pytest.raises(InputError, match=r"gpus_per_run is 1\.5"):
        RayExecutor(gpus_per_run=1.5)
    with pytest.raises(InputError, match="Ray address localhost:1: no cluster lets us in"):
        RayExecutor("localhost:1")
