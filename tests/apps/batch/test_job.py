"""Whole jobs: the answers are the model's own, and nothing is read further ahead than it must be."""

import contextlib
import json
import os
import signal
import tarfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from ahead import most_batches_ahead

from pbprompt.apps.batch import job as jobs
from pbprompt.apps.batch.job import BatchJob, here, make_parts, model_identity, run, streamed
from pbprompt.apps.batch.output import Output, Todo
from pbprompt.vision.images.crops import Crop
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.stream import Files, Record, Stream
from pbprompt.vision.images.workers import Workers
from pbprompt.vision.towers.backbone import Encoded


@pytest.fixture(scope="module")
def decoders():
    with contextlib.closing(Decoder(1, processes=True)) as processes:
        yield processes


@pytest.fixture
def made(model):
    """A job over sources."""
    return lambda *sources, **options: BatchJob(
        model.backbone, model.predict, Stream(sources), {"model": "x"}, **options
    )


def direct(model, batches: list[list[Path]]) -> list[dict]:
    """What the model says of files, encoded in these batches, without any of this."""
    some = [
        model.encode([model.backbone.preprocess(open_image(path)) for path in paths]) for paths in batches
    ]
    images = Encoded(
        torch.cat([one.global_.float() for one in some]), torch.cat([one.patches.half() for one in some])
    )
    paths = [path for batch in batches for path in batch]
    said = model.predict(images)
    return [{"image": str(path), **one.to_dict()} for path, one in zip(paths, said, strict=True)]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_cached_and_streamed_answers_are_the_models_own(made, model, photos, tmp_path, monkeypatch, decoders):
    monkeypatch.setattr(jobs, "decoder_for", lambda backbone: decoders)
    monkeypatch.setattr(decoders, "close", lambda: None)
    found = {}
    for name, most in (("cached", 4), ("streamed", 0)):
        monkeypatch.setattr(jobs, "CACHED_UNITS", most)
        output, job = Output(str(tmp_path / f"{name}.jsonl")), made(photos)
        with output.opened(job.identity(".jsonl")):
            run(job, output, here, progress=False)
        found[name] = rows(output.path)
        (failed,) = rows(output.failed_path)
        assert failed["image"] == str(photos / "05.png") and "no known image format" in failed["reason"]
    batches = [[photos / f"{n:02}.png" for n in some] for some in ((0, 1, 2, 3), (4, 6, 7), (8, 9, 10))]
    assert found["streamed"] == direct(model, batches), "to the bit"
    for one, other in zip(found["cached"], found["streamed"], strict=True):
        assert (one["image"], one["label"]) == (other["image"], other["label"])
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5), "in other batches"


def test_parts_depend_on_their_unit_alone(model, picture, decoders, monkeypatch):
    """So that what was answered before an end, and after it, is what one process would say."""
    monkeypatch.setattr(jobs, "RECORDS", 4)
    units = [
        Files(tuple(Record(f"{u}-{n}", picture(n)) for n in range(size))) for u, size in enumerate((6, 9, 3))
    ]
    made = partial(make_parts, encoder=streamed(model.backbone, decoders), suffix=".jsonl", features=True)
    whole = list(made(model.predict, [Todo(n, unit) for n, unit in enumerate(units)]))
    assert [(part.unit, part.first, part.records, part.last) for part in whole] == [
        (0, 0, 4, False), (0, 4, 2, True), (1, 0, 4, False),
        (1, 4, 4, False), (1, 8, 1, True), (2, 0, 3, True),
    ]  # fmt: skip
    later = list(made(model.predict, [Todo(1, units[1], 4), Todo(2, units[2])]))
    assert later == whole[3:]


class Counting:
    """A unit that says how far it was read."""

    identity = "counting"

    def __init__(self, records: list[Record]) -> None:
        self.all, self.read = records, 0

    def count(self) -> int:
        return len(self.all)

    def records(self, skip: int = 0):
        for record in self.all[skip:]:
            self.read += 1
            yield record


def test_the_source_waits_for_the_taker(model, picture, decoders, monkeypatch):
    monkeypatch.setattr(jobs, "RECORDS", 4)
    unit = Counting([Record(str(n), picture(0)) for n in range(600)])
    encode = streamed(model.backbone, decoders)
    batch, ahead = 4, most_batches_ahead(model.backbone, decoders)
    made = make_parts(model.predict, [Todo(0, unit)], encode, ".jsonl")
    for taken in range(1, 6):
        next(made)
        time.sleep(0.05)  # to run ahead in, if anything would
        assert unit.read <= batch * (taken + ahead + 3) < 600
    made.close()


def test_what_a_job_is_known_by(made, model, tiny_vit):
    one = made("a").identity(".csv")
    assert one == made("a").identity(".csv") and json.loads(json.dumps(one)) == one
    others = [
        made("b").identity(".csv"),
        made("a").identity(".jsonl"),
        made("a", features=True).identity(".csv"),
    ]
    assert all(one != other for other in others)
    more = model.with_classes(["owl"])
    assert model_identity(model) != model_identity(more)


def test_an_image_that_breaks_the_decoder_fails_alone(picture, decoders, monkeypatch):
    good, bad = Record("good", picture(1)), Record("bad", b"")
    original, asked = Workers.ask, []

    def ask(self, function, handle, names, *given):
        asked.append(names)
        if "bad" in names:
            raise TimeoutError if len(asked) < 4 else EOFError
        return original(self, function, handle, names, *given)

    monkeypatch.setattr(Workers, "ask", ask)
    first, late, last = decoders.decode([good, bad, good], Crop(8))
    assert first.shape == (8, 8, 3) and (first == last).all()
    assert "bad: decoding took over 30 seconds" in str(late)
    assert "its decoder broke down" in str(decoders.decode([bad], Crop(8))[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_killed_at_several_moments_and_gone_on_with(made, photos, tmp_path, picture, monkeypatch):
    """Each child is killed after so many parts; the last one comes to the end."""
    with tarfile.open(photos / "zz.tar", "w") as archive:
        for n in range(4):
            archive.add(photos / f"{n:02}.png", f"{n}.png")
    monkeypatch.setattr("pbprompt.vision.images.records.FILES_AT_ONCE", 4)
    monkeypatch.setattr(jobs, "RECORDS", 2)
    job, out = made(photos), str(tmp_path / "a.jsonl")
    monkeypatch.setattr(jobs, "CACHED_UNITS", 0)

    def work(most: int | None) -> None:
        output = Output(out)
        with output.opened(job.identity(".jsonl")):
            add = output.add

            def adding(part):
                nonlocal most
                if most == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                most = None if most is None else most - 1
                add(part)

            output.add = adding
            run(job, output, here, progress=False)

    for most in (0, 1, 2, None):
        child = os.fork()
        if not child:
            code = 1
            try:
                torch.set_num_threads(1)
                work(most)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == (0 if most is None else -signal.SIGKILL)
        assert (tmp_path / "a.jsonl").exists() == (most is None)
    names = [row["image"] for row in rows(tmp_path / "a.jsonl")]
    wanted = [str(photos / f"{n:02}.png") for n in range(11) if n != 5]
    assert names == wanted + [f"{photos}/zz.tar/{n}.png" for n in range(4)]
    assert len(rows(tmp_path / "a.failed.jsonl")) == 1
