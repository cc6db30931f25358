"""Runs: to a line and back, refused in words; and a folder of them that many processes add to."""

import json
import multiprocessing
import os
from dataclasses import asdict, replace

import numpy as np
import pytest

from pbprompt.errors import InputError
from pbprompt.research.runs import (
    BackboneFacts,
    DataFacts,
    Failure,
    RunConfig,
    RunRecord,
    RunStore,
    read_line,
)

CONFIG = RunConfig(task="few-shot", dataset="sample")
# a line as version 0.1.0 wrote it
LINE = {
    "id": "0a1b2c3d4e5f6071",
    "config": {
        "task": "few-shot",
        "dataset": "dtd",
        "method": "coop",
        "preset": "default",
        "variant": "",
        "overrides": ["epochs=3"],
        "shots": 4,
        "seed": 2,
        "views": "centre",
        "targets": [],
        "samples": 20,
    },
    "settings": {"epochs": 3, "words": ""},
    "data": {"name": "dtd", "content_hash": "c", "draw": "d"},
    "backbone": {"name": "lite", "fingerprint": "f"},
    "code": "6c18c63590f9",
    "library": "0.1.0",
    "commit": "abc1234",
    "machine": {"device": "cpu", "torch": "2.11", "float32_products": "highest"},
    "train": {"total": 0.5},
    "results": {"dtd": {"accuracy": 0.25, "images": 160}},
    "seconds": 2,
    "finished": "2024-05-01T10:20:30+00:00",
}


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


def test_a_line_of_the_first_version_is_read_and_written_with_its_split():
    record = read_line(RunRecord, LINE, "records.jsonl")
    assert record.config == RunConfig(
        task="few-shot", dataset="dtd", method="coop", overrides=("epochs=3",), shots=4, seed=2
    )
    now = LINE | {"config": LINE["config"] | {"split": "test", "precision": "float32", "temper": False}}
    assert json.loads(json.dumps(asdict(record))) == now


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seconds": None}, "run 0a1b2c3d4e5f6071: field 'seconds' is None: it takes float"),
        ({"results": {"dtd": {"accuracy": "high"}}}, "field 'results.dtd.accuracy' is 'high'"),
        ({"backbone": {"name": "lite"}}, "field 'backbone.fingerprint' is missing"),
        ({"config": {"task": "few-shot"}}, "field 'config.dataset' is missing"),
        (
            {"config": {"task": "many-shot", "dataset": "dtd"}},
            "field 'config.task' is 'many-shot': choose one of few",
        ),
        (
            {"config": {"task": "few-shot", "dataset": "dtd", "shot": 1}},
            "unknown field 'config.shot'.*'shots'",
        ),
    ],
)
def test_what_cannot_be_read_is_named(change, says):
    with pytest.raises(InputError, match=f"records.jsonl: .*{says}.*remove the line"):
        read_line(RunRecord, LINE | change, "records.jsonl")
    with pytest.raises(InputError, match="is no run"):
        read_line(RunRecord, ["few-shot"], "records.jsonl")


def test_the_figure_a_run_is_about():
    record = read_line(RunRecord, LINE, "records.jsonl")
    assert (record.score, record.headline) == (0.25, "25.00")
    figures = {"base": 0.8, "new": 0.4, "H": 0.5, "pets": 0.5, "sun397": 0.3, "dtd": 0.9}
    results = {test: {"accuracy": value} for test, value in figures.items()}
    halves = replace(record, config=replace(record.config, task="base-to-new"), results=results)
    assert (halves.score, halves.headline) == (0.5, "H 50.00 (base 80.00, new 40.00)")
    targets = replace(record.config, task="cross-dataset", targets=("pets", "sun397"))
    assert replace(record, config=targets, results=results).headline == "90.00, targets 40.00"
    with pytest.raises(InputError, match="no accuracy of 'H': it has dtd"):
        record.accuracy("H")


def test_a_run_in_words():
    run = RunConfig(
        task="base-to-new", dataset="dtd", variant="w/o-S", overrides=("epochs=3",), samples=5, seed=2
    )
    assert str(run) == "base-to-new on dtd: pbprompt, w/o-S, epochs=3, samples=5, 16 shots, seed 2"
    assert run.row(without="epochs") == "pbprompt, w/o-S, samples=5"
    assert run.row(without="samples") == "pbprompt, w/o-S, epochs=3"
