import multiprocessing
import os

import numpy as np
import pytest

from pbprompt.errors import InputError
from pbprompt.research.runs.config import RunConfig
from pbprompt.research.runs.record import BackboneFacts, DataFacts, Failure, RunRecord
from pbprompt.research.runs.store import RunStore

CONFIG = RunConfig(task="few-shot", dataset="sample")


def record(identity, **settings):
    return RunRecord(
        id=identity,
        config=CONFIG,
        settings=settings,
        data=DataFacts("sample", "c", "d"),
        backbone=BackboneFacts("lite", "f"),
        code="pbprompt 1, loop 1",
        results={"sample": {"accuracy": 0.5, "images": 160}},
        seconds=1.5,
    )


def write_many(folder, worker):
    store = RunStore(folder)
    for number in range(40):
        # odd numbers are the same run in both processes, even ones are their own
        identity = f"same-{number}" if number % 2 else f"worker-{worker}-{number}"
        store.add(record(identity, text="x" * 5000), {"t/label": np.arange(number + 1)})


def write_many_twice(folder):
    """In two processes, of which one imported everything."""
    other = os.fork()
    write_many(folder, 1 if other else 2)
    assert not other or os.waitpid(other, 0)[1] == 0


def test_two_processes_lose_and_double_nothing(tmp_path):
    first = multiprocessing.get_context("spawn").Process(target=write_many_twice, args=(str(tmp_path),))
    first.start()
    first.join()
    assert first.exitcode == 0
    store = RunStore(tmp_path)
    expected = {f"worker-{w}-{n}" for w in (1, 2) for n in range(0, 40, 2)}
    expected |= {f"same-{n}" for n in range(1, 40, 2)}
    assert store.finished() == expected
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 60
    assert all(found.settings["text"] == "x" * 5000 for found in store.records())
    assert np.array_equal(store.arrays("same-7")["t/label"], np.arange(8))


def test_a_run_that_a_full_disk_cut_short_is_not_finished(tmp_path, monkeypatch):
    store, write = RunStore(tmp_path), os.write
    store.add(record("a"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", lambda handle, content: write(handle, content[:100]))
        store.add(record("b"))
    assert store.finished() == {"a"}
    store.add(record("b"))
    assert [found.id for found in store.records()] == ["a", "b"]


def test_a_torn_line_costs_only_itself(tmp_path):
    store = RunStore(tmp_path)
    store.add(record("a"))
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"id": "torn", "resul')
    store.add(record("b"))
    assert [found.id for found in store.records()] == ["a", "b"]
    store.add(record("torn"))
    assert store.finished() == {"a", "b", "torn"}


def test_a_line_that_is_no_run_is_told_and_hinders_no_other(tmp_path):
    store = RunStore(tmp_path)
    (tmp_path / "records.jsonl").write_text('{"id": ["a"]}\n5\n[]\n')
    store.add(record("a"))
    assert store.finished() == {"a"}
    with pytest.raises(InputError, match=r"records\.jsonl: run \['a'\]"):
        store.records()


def test_failures_are_not_finished_until_a_retry_succeeds(tmp_path):
    store = RunStore(tmp_path)
    store.fail(Failure("a", CONFIG, "Traceback"))
    assert store.finished() == set()
    assert store.failures() == [Failure("a", CONFIG, "Traceback")]
    store.add(record("a"))
    assert store.failures() == []


def test_find_takes_the_start_of_an_id(tmp_path):
    store = RunStore(tmp_path)
    for identity in ("abc1", "abd2"):
        store.add(record(identity))
    assert store.find("abc").id == "abc1"
    for start in ("ab", "zz"):
        with pytest.raises(InputError, match=f"starts with '{start}'"):
            store.find(start)


def test_an_empty_folder_and_missing_arrays(tmp_path):
    store = RunStore(tmp_path / "nothing")
    assert store.records() == [] and store.failures() == []
    with pytest.raises(InputError, match="per-image arrays"):
        store.arrays("abc")
