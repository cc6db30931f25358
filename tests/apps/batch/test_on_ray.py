"""Jobs on a real Ray: answers, where a worker is killed in the middle, and a fit, as its page shows it."""

import contextlib
import io
import os
import pickle
import re
import signal
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from pbprompt.apps.batch import job as jobs
from pbprompt.apps.batch import on_ray as module
from pbprompt.apps.batch.job import BatchJob, here, run
from pbprompt.apps.batch.on_ray import on_ray, sent
from pbprompt.apps.batch.output import Output
from pbprompt.errors import InputError
from pbprompt.model.decisions import Rule
from pbprompt.model.fitting import fit_gathered, gather_stream
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Encoded

PAGE = Path(__file__).parents[3] / "docs" / "streaming-fit.md"
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """Two processors, for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        yield
        ray.shutdown()


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
def test_a_worker_killed_in_the_middle_changes_nothing(cluster, model, photos, tmp_path, monkeypatch):
    pytest.importorskip("ray.data")  # pandas and all: a second of every process, were it imported above
    (photos / "table.csv").write_text("image\n" + "".join(f"{n:02}.png\n" for n in range(11)) * 110)
    job = BatchJob(model.backbone, model.predict, Stream([photos / "table.csv"]), {"model": "x"})
    wanted, found = Output(str(tmp_path / "a.jsonl")), Output(str(tmp_path / "b.jsonl"))
    monkeypatch.setattr(jobs, "CACHED_UNITS", 0)
    with wanted.opened(job.identity(".jsonl")):
        run(job, wanted, here, progress=False)
    mark = tmp_path / "killed"
    with found.opened(job.identity(".jsonl")):
        run(job, found, partial(on_ray, None, Deadly(model, mark), "cpu", actors=1), progress=False)
    assert mark.exists(), "a process was killed"
    assert (found.rows, found.failures) == (wanted.rows, wanted.failures) == (1100, 110)
    assert found.path.read_bytes() == wanted.path.read_bytes()
    assert found.failed_path.read_bytes() == wanted.failed_path.read_bytes()


@pytest.mark.slow
def test_the_fit_of_the_page_is_that_of_one_process(cluster, lite, picture, tmp_path):
    """Its code as it stands there, but for the folders and with two parts in place of eight."""
    (tmp_path / "shards").mkdir()
    for number, labels in enumerate((("hen", "cat", "dog", "cat"), ("dog", "owl", "cat", "hen"))):
        with tarfile.open(tmp_path / "shards" / f"{number}.tar", "w") as archive:
            for place, label in enumerate(labels):
                for suffix, content in (("png", picture(4 * number + place)), ("cls", label.encode())):
                    member = tarfile.TarInfo(f"{place}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for shown, here_ in (("shards/", f"{tmp_path}/shards/"), ("model", f"{tmp_path}/model")):
        assert f'"{shown}"' in code
        code = code.replace(f'"{shown}"', f'"{here_}"')
    exec(code.replace("at::8", "at::2").replace("range(8)", "range(2)"), {"__name__": "__main__"})
    spread = TunedModel.load(tmp_path / "model", lite)
    kind = find_method("conjugate")
    found = gather_stream(Stream([tmp_path / "shards"]), lite, progress=False)
    alone = fit_gathered(found, lite, kind, kind.Config(), Choices())
    assert spread.classes == alone.classes == ("cat", "dog", "hen", "owl")
    assert spread.info.data.images == alone.info.data.images == 8
    images = Encoded(torch.randn(4, lite.embed_dim), torch.randn(4, 49, lite.embed_dim))
    torch.testing.assert_close(
        spread.predictor(images).probabilities, alone.predictor(images).probabilities, rtol=1e-4, atol=1e-5
    )


def test_a_model_travels_as_its_files(lite):
    model = replace(TunedModel.zero_shot(lite, ["cat", "dog"]), samples=3)
    load = pickle.loads(pickle.dumps(sent(model, None, "cpu", Rule(threshold=0.9))))
    backbone, say = load()
    images = Encoded(torch.randn(2, lite.embed_dim), torch.randn(2, 49, lite.embed_dim))
    assert backbone.fingerprint == lite.fingerprint
    assert list(say(images)) == list(model.predict(images, Rule(threshold=0.9)))


def test_what_a_user_can_mend_is_found_in_what_ray_wraps_around_it():
    try:
        try:
            raise InputError("mend it")
        except InputError as error:
            raise RuntimeError("a task failed") from error
    except RuntimeError as error:
        assert str(module._own(error)) == "mend it"
    assert module._own(RuntimeError("other")) is None
