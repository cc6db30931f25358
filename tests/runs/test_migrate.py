"""Stores from before revisions: runs keep their results and their arrays under a new name."""

import json
from dataclasses import replace

import numpy as np
import pytest

from pbprompt.errors import InputError
from pbprompt.runs.config import RunConfig
from pbprompt.runs.migrate import migrate
from pbprompt.runs.protocol import prepare_run
from pbprompt.runs.record import BackboneFacts, Failure, Record
from pbprompt.runs.store import RunStore

OLD, OLDER = "7d74b2259b09", "0123456789ab"


def old_record(identity, lite, code, **config):
    """As a former version wrote it, of a run that `prepare_run` makes today."""
    run = prepare_run(RunConfig(task="few-shot", dataset="sample", method="coop", shots=1, **config))
    record = Record(
        id=identity,
        config=run.config,
        settings=vars(run.settings),
        data=run.data,
        backbone=BackboneFacts("lite", lite.fingerprint),
        code=code,
        results={"sample": {"accuracy": 0.5}},
        seconds=1.0,
    )
    return record, run.id(lite)


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def test_runs_are_found_done_and_keep_what_they_said(store, lite):
    records = [old_record(f"old{seed}", lite, OLD, seed=seed) for seed in (1, 2)]
    for record, _ in records:
        store.add(record, {"x": np.full(2, record.config.seed)})
    other = replace(
        records[0][0], id="new", code="coop 1, loop 1", config=replace(records[0][0].config, seed=9)
    )
    store.add(other)
    store.fail(Failure("old1", records[0][0].config, "Traceback"))
    before = store.lines.read_bytes()

    assert migrate(store, write=False).renamed == {("coop", OLD): 2}
    assert store.lines.read_bytes() == before and not list(store.folder.glob("*.bak"))

    assert migrate(store).renamed == {("coop", OLD): 2}
    assert [record.id for record in store.records()] == [records[0][1], records[1][1], "new"]
    first = store.records()[0]
    assert (first.code, first.code_hash) == ("coop 1, loop 1", OLD) and first.results["sample"][
        "accuracy"
    ] == 0.5
    assert store.arrays(records[1][1])["x"].tolist() == [2, 2]
    assert len(list((store.folder / "arrays").iterdir())) == 2
    assert not store.failures(), "its run has finished since, under whichever name"
    assert (store.folder / "records.jsonl.bak").read_bytes() == before
    assert not migrate(store).renamed


def test_other_code_stays_unless_it_is_vouched_for(store, lite):
    store.add(old_record("a1", lite, OLDER, seed=1)[0])
    store.add(old_record("a2", lite, OLDER, seed=2)[0])
    store.add(old_record("b1", lite, OLD, seed=1)[0])
    assert migrate(store, write=False).left == {("coop", OLDER): 2}
    done = migrate(store, [OLDER])
    assert done.renamed == {("coop", OLDER): 1, ("coop", OLD): 1}
    assert done.left == {("coop", OLDER): 1}, "the same run as the later one"
    assert [record.code_hash for record in store.records()] == ["", OLDER, OLD]
    with pytest.raises(InputError, match="no record has the code 'ffffffffffff'"):
        migrate(store, ["f" * 12])


def test_a_line_of_another_version_is_refused_and_nothing_written(store):
    store.folder.mkdir()
    store.lines.write_text(json.dumps({"id": "a", "code": OLD}) + "\n")
    with pytest.raises(InputError, match="run a: field 'config' is missing"):
        migrate(store)
    assert not list(store.folder.glob("*.bak"))
