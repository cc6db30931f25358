"""A sweep over local processes: order, retries, deaths, resuming."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sweep_stubs
from inline_executor import Inline
from sweep_stubs import tries, write_plan

from pbprompt.errors import InputError
from pbprompt.executors import LocalExecutor, _death
from pbprompt.research import protocol
from pbprompt.research.runs import RunConfig, RunStore
from pbprompt.research.sweep import prepare_runs, sweep


def runs(*seeds: int) -> list[RunConfig]:
    return [RunConfig(task="few-shot", dataset="sample", shots=1, seed=seed) for seed in seeds]


def go(root: Path, seeds: tuple[int, ...], jobs: int = 1, work=sweep_stubs.work, encode=sweep_stubs.encode):
    """In so many processes; with none of them, here: where a process is not the point."""
    store = RunStore(root / "runs")
    with closing(LocalExecutor(jobs) if jobs else Inline()) as executor:
        outcome = sweep(
            runs(*seeds),
            backbone="lite",
            root=root,
            store=store,
            executor=executor,
            progress=False,
            work=partial(work, root),
            encode=partial(encode, root),
        )
    return outcome, store


def ids(root: Path, *seeds: int) -> tuple[str, ...]:
    return tuple(prepare_runs(runs(*seeds), "lite", root))


@pytest.mark.slow
def test_runs_are_done_in_order_after_one_encoding_and_skipped_the_next_time(tmp_path):
    write_plan(tmp_path)
    outcome, store = go(tmp_path, (1, 2, 2))
    assert outcome.done == ids(tmp_path, 1, 2) and not outcome.skipped and not outcome.failed
    assert [record.config.seed for record in store.records()] == [1, 2]
    assert store.arrays(outcome.done[1])["x"].tolist() == [2, 2, 2]
    workers = {record.machine["worker"] for record in store.records()}
    assert len(workers) == 1 and os.getpid() not in workers, "one process does both, and not this one"
    (tmp_path / "tries-1").unlink()
    (tmp_path / "tries-2").unlink()
    again, store = go(tmp_path, (1, 2, 3), jobs=0)
    assert again.done == ids(tmp_path, 3) and again.skipped == ids(tmp_path, 1, 2)
    assert len(store.records()) == 3 and not tries(tmp_path, 1)
    assert len((tmp_path / "encoded").read_text().split()) == 2


@pytest.mark.slow
def test_what_raises_or_dies_is_tried_twice_and_the_others_go_on(tmp_path):
    write_plan(tmp_path, seed1=["raise"], seed2=["raise", "ok"], seed3=["exit", "ok"], seed4=["kill"])
    outcome, store = go(tmp_path, (1, 2, 3, 4, 5), jobs=2)
    assert set(outcome.done) == set(ids(tmp_path, 2, 3, 5)) and set(outcome.failed) == set(
        ids(tmp_path, 1, 4)
    )
    assert [len(tries(tmp_path, seed)) for seed in (1, 2, 3, 4, 5)] == [2, 2, 2, 2, 1]
    assert len(set(tries(tmp_path, 3))) == len(set(tries(tmp_path, 4))) == 2, "a fresh process each"
    raised, died = sorted(store.failures(), key=lambda failure: failure.config.seed)
    assert (raised.id, died.id) == ids(tmp_path, 1, 4)
    assert "ArithmeticError: seed 1 went wrong" in raised.traceback and "_act" in raised.traceback
    assert "SIGKILL (out of memory?)" in died.traceback
    for file in tmp_path.glob("tries-*"):
        file.unlink()
    write_plan(tmp_path, seed1=["ok"], seed4=["raise"])
    mended, store = go(tmp_path, (1, 2, 3, 4, 5), jobs=0)
    assert mended.done == ids(tmp_path, 1) and mended.skipped == ids(tmp_path, 2, 3, 5)
    assert "seed 4 went wrong" in store.failures()[-1].traceback
    assert _death(7) == "the worker process ended with exit code 7"


def test_what_cannot_be_encoded_fails_its_runs(tmp_path):
    write_plan(tmp_path)
    outcome, store = go(tmp_path, (1, 2), jobs=0, encode=sweep_stubs.encode_in_vain)
    assert outcome.failed == ids(tmp_path, 1, 2) and not tries(tmp_path, 1)
    assert all("an image is torn" in failure.traceback for failure in store.failures())
    assert len((tmp_path / "encoded").read_text().split()) == 2


@pytest.mark.parametrize(
    ("work", "jobs", "says"),
    [(sweep_stubs.misnamed, 0, "names this run another"), (sweep_stubs.not_picklable, 1, "pickle")],
)
def test_answers_that_cannot_be_kept_are_failures(tmp_path, work, jobs, says):
    write_plan(tmp_path)
    outcome, store = go(tmp_path, (1,), jobs, work=work)
    assert outcome.failed == ids(tmp_path, 1) and says in store.failures()[0].traceback


def test_settings_that_do_not_fit_show_before_anything_starts(tmp_path):
    bad = RunConfig(task="few-shot", dataset="sample", overrides=("epocs=1",))
    with pytest.raises(InputError, match="epochs"):
        sweep([bad], backbone="lite", root=None, store=RunStore(tmp_path), executor=None)


def test_workers_share_the_gpus_or_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr("pbprompt.executors.available_cpus", lambda: 8)

    def environments(jobs, device):
        return LocalExecutor(jobs, device)._environments

    assert environments(None, "cpu") == [{"OMP_NUM_THREADS": "2"}] * 4
    assert environments(None, "cuda") == [
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "4"},
        {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "6"},
    ]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments(4, "cuda")] == ["4", "6", "4", "6"]
    assert environments(1, "cuda:1") == [{"OMP_NUM_THREADS": "8"}]
    with pytest.raises(InputError, match="jobs is 0"):
        LocalExecutor(0)
    write_plan(tmp_path)
    _, store = go(tmp_path, (1,), jobs=2)
    assert store.records()[0].machine["threads"] == "4" and "OMP_NUM_THREADS" not in os.environ


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
import sweep_stubs
from pbprompt.research.runs import RunConfig
from pbprompt.research.runs import RunStore
from pbprompt.research.sweep import sweep
from pbprompt.executors import LocalExecutor
from contextlib import closing

if __name__ == "__main__":
    root = Path(sys.argv[1])
    runs = [RunConfig(task="few-shot", dataset="sample", shots=1, seed=seed) for seed in (1, 2, 3)]
    try:
        with closing(LocalExecutor(int(sys.argv[2]))) as executor:
            sweep(runs, backbone="lite", root=root, store=RunStore(root / "runs"), executor=executor,
                  work=partial(sweep_stubs.work, root), encode=partial(sweep_stubs.encode, root))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def alive(process: int) -> bool:
    """A zombie whose parent is gone counts as dead."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def until(condition, process=None) -> None:
    """Wait, however busy the machine is, while the process that is to bring it about runs."""
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("how", "jobs"), [(signal.SIGINT, 2), (signal.SIGKILL, 1)])
def test_ctrl_c_or_a_kill_leaves_no_process_and_keeps_what_was_done(tmp_path, stub_path, child, how, jobs):
    write_plan(tmp_path, seed2=["sleep"], seed3=["sleep"])
    asleep = (2, 3)[:jobs]
    (tmp_path / "script.py").write_text(SCRIPT)
    store = RunStore(tmp_path / "runs")
    process = child([sys.executable, tmp_path / "script.py", tmp_path, jobs], stderr=subprocess.PIPE)
    until(lambda: store.finished() and all(tries(tmp_path, seed) for seed in asleep), process)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: to the workers too
    else:
        process.kill()
    _, errors = process.communicate()
    until(lambda: not any(alive(tries(tmp_path, seed)[0]) for seed in asleep))
    if how == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "Traceback" not in errors and "stopped with 1 of 3 runs: the same command goes on" in errors
    assert [record.config.seed for record in store.records()] == [1] and not store.failures()


def test_every_dataset_is_opened_and_every_draw_made_once(tmp_path, monkeypatch):
    opened, drawn = [], []
    plain_open, plain_draw = protocol.open_dataset, protocol.draw

    def few(name, root, **held_out):
        opened.append(name)
        dataset = plain_open(name, root, **held_out)
        return replace(dataset, val=dataset.val[::20], test=dataset.test[::20])

    monkeypatch.setattr(protocol, "open_dataset", few)
    monkeypatch.setattr(protocol, "draw", lambda *asked: drawn.append(asked[1:]) or plain_draw(*asked))
    wanted = [
        RunConfig(
            task="domain-shift", dataset="sample:fluent", method=method, shots=1, targets=("sample:openmoji",)
        )
        for method in ("zeroshot", "nearest-mean")
    ]
    store = RunStore(tmp_path / "runs")
    outcome = sweep(wanted, backbone="lite", root=None, store=store, executor=Inline(), progress=False)
    assert len(outcome.done) == 2 and not outcome.failed, store.failures()
    assert opened == ["sample:fluent", "sample:openmoji"] and drawn == [(1, 1)]
    assert all(set(record.results) == set(opened) for record in store.records())


def test_ctrl_c_right_after_a_record_was_kept_counts_it(tmp_path, monkeypatch, capsys):
    kept = RunStore.add

    def interrupted(store, *record):
        kept(store, *record)
        raise KeyboardInterrupt

    write_plan(tmp_path)
    store = RunStore(tmp_path / "runs")
    monkeypatch.setattr(RunStore, "add", interrupted)
    functions = {"work": partial(sweep_stubs.work, tmp_path), "encode": partial(sweep_stubs.encode, tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        sweep(runs(1, 2), backbone="lite", root=tmp_path, store=store, executor=Inline(), **functions)
    assert "stopped with 1 of 2 runs" in capsys.readouterr().err and len(store.finished()) == 1
