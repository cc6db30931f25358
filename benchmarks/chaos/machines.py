"""Jobs over several processes, one of which is killed: a fit under torchrun, and answers on Ray.

`python -m benchmarks.chaos.machines FOLDER` is the job on Ray, whose first worker kills itself.
"""

import importlib.util
import io
import logging
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.chaos.disk import Outcome, tiny_backbone, tiny_method
from benchmarks.chaos.kills import PHOTOS, draw_photos
from pbprompt.apps.batch import job as batch
from pbprompt.apps.batch.output import Output
from pbprompt.model.folder import describe_model
from pbprompt.model.manifest import WEIGHTS
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.stream import Stream

SECONDS = 300.0  # after which a job counts as hung


def attack(seed: int = 0) -> Iterator[tuple[str, Counter[Outcome]]]:
    """Each, once."""
    with tempfile.TemporaryDirectory() as folder:
        yield (
            "torchrun, a worker killed",
            Counter([_torchrun(Path(folder), random.Random(f"{seed}/torchrun"))]),
        )
    if importlib.util.find_spec("ray") is None:
        print("chaos: Ray is not installed: no job is run on it", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        draw_photos(Path(folder) / "photos")
        code = _ended(_start("-m", __name__, folder))
        yield "Ray, a worker killed", Counter(["hung" if code is None else "lost" if code else "survived"])


def _start(*arguments: object) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    environment.pop("RAY_ADDRESS", None)
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _ended(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _torchrun(folder: Path, source: random.Random) -> Outcome:
    """A fit in one pass by two processes; the same again, after one was killed, gives the same model."""
    draw_photos(folder / "photos")

    def fit(out: str) -> "subprocess.Popen[bytes]":
        shared = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pbprompt")
        return _start(*shared, "fit", folder / "*.tar", "--out", folder / out, "--device", "cpu")

    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for place, path in enumerate(5 * sorted((folder / "photos").rglob("*.png"))):
                archive.add(path, f"{place}.png")
                label = tarfile.TarInfo(f"{place}.cls")
                label.size = len(path.parent.name)
                archive.addfile(label, io.BytesIO(path.parent.name.encode()))
    started = time.monotonic()
    if _ended(fit("whole")):
        return "lost"
    disturbed = fit("model")
    time.sleep((time.monotonic() - started) * (0.3 + 0.6 * source.random()))
    for worker in _children(disturbed.pid)[:1]:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    if _ended(disturbed) is None:
        return "hung"
    if not (folder / "model" / "config.json").exists() and (code := _ended(fit("model"))) != 0:
        return "hung" if code is None else "lost"
    wanted, found = (load_file(next((folder / out).glob(f"*{WEIGHTS}*"))) for out in ("whole", "model"))
    same = wanted.keys() == found.keys() and all((wanted[key] == found[key]).all() for key in wanted)
    return "survived" if same else "lost"


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


class _Deadly:
    """Loads the model; the first process that answers is killed meanwhile."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self) -> tuple[Any, Callable[[Any], Any]]:
        model = _model()

        def say(images: Any) -> Any:
            with suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            return model.predict(images)

        return model.backbone, say


def _model() -> TunedModel:
    method = tiny_method(tiny_backbone(), 1.0, ("cat", "dog"))
    return TunedModel(method, describe_model(method), samples=1)


def on_ray(folder: Path) -> int:
    """0 where the answers are those of a job on this machine."""
    import ray

    from pbprompt.apps.batch.on_ray import on_ray as executor

    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    model, mark = _model(), folder / "killed"
    batch.CACHED_UNITS = 0
    outputs = []
    for name, execute in (
        ("here", batch.here),
        ("ray", partial(executor, None, _Deadly(mark), "cpu", actors=1)),
    ):
        job = batch.BatchJob(model.backbone, model.predict, Stream([folder / "photos"]), {"model": "x"})
        output = Output(str(folder / f"{name}.jsonl"))
        with output.opened(job.identity(".jsonl")):
            batch.run(job, output, execute, progress=False)
        outputs.append(output.path.read_bytes())
    ray.shutdown()
    return 0 if mark.exists() and outputs[0] == outputs[1] and len(outputs[0].splitlines()) == PHOTOS else 1


if __name__ == "__main__":
    raise SystemExit(on_ray(Path(sys.argv[1])))
