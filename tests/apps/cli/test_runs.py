import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pbprompt.apps.cli.runs import app
from pbprompt.errors import InputError
from pbprompt.research.runs import Failure, RunConfig, RunRecord, RunStore, read_line


def record(identity, task, method, seed, results, targets=(), overrides=()):
    config = {"task": task, "dataset": "sample", "method": method, "shots": 4, "seed": seed}
    return read_line(
        RunRecord,
        {
            "id": identity,
            "config": config | {"targets": list(targets), "overrides": list(overrides)},
            "settings": {},
            "backbone": {"name": "lite", "fingerprint": "f"},
            "data": {"name": "sample", "content_hash": "c", "draw": "d" * 8},
            "code": f"{method} 1, loop 1",
            "results": {name: {"accuracy": value} for name, value in results.items()},
            "seconds": 1.5,
            "finished": "2024-05-01T10:20:30+00:00",
        },
        "records.jsonl",
    )


@pytest.fixture
def folder(tmp_path):
    store = RunStore(tmp_path / "runs")
    store.add(
        record("aaaa1", "few-shot", "coop", 1, {"sample": 0.5}, overrides=["epochs=[2]"]), {"x": np.ones(1)}
    )
    halves = {"base": 0.8, "new": 0.4, "joint": 0.3, "H": 8 / 15}
    store.add(record("bbbb2", "base-to-new", "pbprompt", 2, halves))
    tests = {"sample": 0.9, "pacs": 0.2, "dtd": 0.4}
    store.add(record("cccc3", "cross-dataset", "coop", 2, tests, targets=["pacs", "dtd"]))
    store.fail(Failure("dddd4", RunConfig(task="few-shot", dataset="sample"), "Traceback"))
    return store.folder


def run(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_list_has_every_run_with_its_figure(folder):
    lines = run("--runs", folder).splitlines()
    (first,) = [line for line in lines if "aaaa1" in line]
    assert " 50.00 " in first and "coop, epochs=[2]" in first and "2024-05-01T10:20" in first
    (second,) = [line for line in lines if "bbbb2" in line]
    assert "H 53.33 (base 80.00, new 40.00)" in second
    (third,) = [line for line in lines if "cccc3" in line]
    assert "90.00, targets 30.00" in third
    assert "3 of 3 runs" in lines[-1] and "1 failed" in lines[-1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--task", "few-shot"), "1 of 3"),
        (("--method", "coop"), "2 of 3"),
        (("--method", "coop", "--seed", 2), "1 of 3"),
        (("--dataset", "dtd"), "0 of 3"),
    ],
)
def test_filters(folder, words, expected):
    assert expected in run("--runs", folder, *words)


def test_show_prints_the_record(folder):
    assert json.loads(run("show", "bb", "--runs", folder))["results"]["base"]["accuracy"] == 0.8
    with pytest.raises(InputError, match="no runs have an id that starts with 'x'"):
        run("show", "x", "--runs", folder)


def test_export_has_a_line_a_test(folder, tmp_path):
    file = tmp_path / "out" / "runs.csv"
    run("export", "--csv", file, "--runs", folder, "--seed", 2)
    lines = list(csv.DictReader(file.open()))
    assert [(line["id"], line["test"]) for line in lines] == [
        *(("bbbb2", name) for name in ("base", "new", "joint", "H")),
        *(("cccc3", name) for name in ("sample", "pacs", "dtd")),
    ]
    assert lines[5]["targets"] == "pacs dtd" and float(lines[5]["accuracy"]) == 0.2


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such folder of results"):
        run("--runs", tmp_path / "none")


def test_options_before_the_verb_are_refused_and_not_dropped(folder):
    with pytest.raises(InputError, match="options go after the verb"):
        run("--runs", folder, "show", "aaaa1")
