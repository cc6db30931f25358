"""A record: to a line and back, refused in words, and the figures that it is about."""

import json
from dataclasses import asdict, replace

import pytest

from pbprompt.errors import InputError
from pbprompt.research.runs.config import RunConfig
from pbprompt.research.runs.provenance import code_revision, machine
from pbprompt.research.runs.record import RunRecord, read_line

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


def test_code_is_named_by_revisions(monkeypatch):
    from pbprompt.prompts.rivals.coop import CoOp

    assert code_revision(CoOp) == "coop 1, loop 1"
    monkeypatch.setattr(CoOp, "revision", 2)
    assert code_revision(CoOp) == "coop 2, loop 1"


def test_the_machine_is_named():
    here = machine("cpu")
    assert here["kind"] == "cpu" and here["device"] == here["cpu"] and here["cores"] >= 1
