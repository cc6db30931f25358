"""The same job on a real Ray, a worker of which is killed in the middle."""

import contextlib
import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pbprompt.batch import job as jobs
from pbprompt.batch import on_ray as module
from pbprompt.batch.job import Job, here, run
from pbprompt.batch.on_ray import SentModel, on_ray
from pbprompt.batch.output import Output
from pbprompt.clip.backbone import Encoded
from pbprompt.data.stream import Stream
from pbprompt.errors import InputError
from pbprompt.model.predictions import Rule
from pbprompt.model.tuned import TunedModel

ray = pytest.importorskip("ray")


class Deadly:
    """Loads the model, whose first process is killed while it answers."""

    def __init__(self, model, mark: Path) -> None:
        self.model, self.mark = model, mark

    def __call__(self):
        def say(images):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            return self.model.predict(images)

        return self.model.backbone, say


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_changes_nothing(model, photos, tmp_path, monkeypatch):
    pytest.importorskip("ray.data")  # pandas and all: a second of every process, were it imported above
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    (photos / "table.csv").write_text("image\n" + "".join(f"{n:02}.png\n" for n in range(11)) * 110)
    job = Job(model.backbone, model.predict, Stream([photos / "table.csv"]), {"model": "x"})
    wanted, found = Output(str(tmp_path / "a.jsonl")), Output(str(tmp_path / "b.jsonl"))
    monkeypatch.setattr(jobs, "CACHED_UNITS", 0)
    with wanted.opened(job.identity(".jsonl")):
        run(job, wanted, here, progress=False)
    mark = tmp_path / "killed"
    try:
        with found.opened(job.identity(".jsonl")):
            run(job, found, on_ray(None, Deadly(model, mark), "cpu", actors=1), progress=False)
    finally:
        ray.shutdown()
    assert mark.exists(), "a process was killed"
    assert (found.rows, found.failures) == (wanted.rows, wanted.failures) == (1100, 110)
    assert found.path.read_bytes() == wanted.path.read_bytes()
    assert found.failed_path.read_bytes() == wanted.failed_path.read_bytes()


def test_a_model_travels_as_its_files(lite):
    model = replace(TunedModel.zero_shot(lite, ["cat", "dog"]), samples=3)
    sent = pickle.loads(pickle.dumps(SentModel.of(model, None, "cpu", Rule(threshold=0.9))))
    backbone, say = sent()
    images = Encoded(torch.randn(2, lite.embed_dim), torch.randn(2, 49, lite.embed_dim))
    assert backbone.fingerprint == lite.fingerprint
    assert say(images) == model.predict(images, Rule(threshold=0.9))


def test_what_a_user_can_mend_is_found_in_what_ray_wraps_around_it():
    try:
        try:
            raise InputError("mend it")
        except InputError as error:
            raise RuntimeError("a task failed") from error
    except RuntimeError as error:
        assert str(module._own(error)) == "mend it"
    assert module._own(RuntimeError("other")) is None
