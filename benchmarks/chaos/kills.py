"""Whole jobs, each a process of its own that is killed at a random moment: fit, by steps and in one pass,
sweep, export, save, cache, predict.

Moments are drawn with a seed, as a part of the time that a job takes undisturbed. Then what is on the disk is
looked at, the same job is done again, and its result must be that of a job that nobody disturbed.
"""

import os
import random
import signal
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from PIL import Image

from benchmarks.chaos.disk import Outcome, tiny_backbone, tiny_method
from pbprompt.apps.batch import job as batch_job
from pbprompt.apps.batch.output import Output
from pbprompt.apps.export import export_onnx
from pbprompt.executors import Ended, Job, attempt
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.fitting import fit_gathered, gather_stream, stream_checkpoint
from pbprompt.model.folder import describe_model
from pbprompt.model.manifest import WEIGHTS, claim, is_model, opened
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop import loop
from pbprompt.registry import find_method
from pbprompt.research.runs import RunConfig, RunStore
from pbprompt.research.sweep import sweep
from pbprompt.vision.features import checkpoint, claims, store
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images import records
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Backbone

SECONDS = 600.0  # after which a job that nobody kills counts as hung
PHOTOS = 12
LEAST = 6  # points of each job


class Killed(NamedTuple):
    """A job: what it does in a folder, how to look at what it left (raising where that is wrong), and how
    to look at what it made in the end."""

    work: Callable[[], None]
    look: Callable[[], None]
    result: Callable[[], Any]


def attack(points: int, seed: int = 0) -> Iterator[tuple[str, Counter[Outcome]]]:
    """Each job, and how it fared at its share of the points."""
    torch.set_num_threads(1)  # a forked child has none of the others
    backbone, source = tiny_backbone(), random.Random(f"{seed}/kills")
    claims.SMALLEST, store.SHARD_IMAGES, loop.SAVE_EVERY = 2, 2, 0.0  # many writes in little work
    whole = sum(share for _, share in JOBS)
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder)
        draw_photos(photos)
        for job, share in JOBS:
            counts: Counter[Outcome] = Counter()
            wanted, takes = _undisturbed(job, photos, backbone)
            for _ in range(max(LEAST, round(points * share / whole))):
                counts[_point(job, photos, backbone, wanted, source.random() * takes)] += 1
            yield f"killed {job.__name__.strip('_').replace('_', ' ')}", counts


def _undisturbed(job: "Make", photos: Path, backbone: Backbone) -> tuple[Any, float]:
    """The result of a job, and the seconds it takes. The first is done here: what it loads, children have."""
    results = []
    for here in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            killed, started = job(Path(folder), photos, backbone), time.monotonic()
            if here:
                killed.work()
            elif _run(killed.work, None) != 0:
                raise RuntimeError(f"{job.__name__} fails undisturbed")
            took = time.monotonic() - started
            results.append(killed.result())
    if results[0] != results[1]:
        raise RuntimeError(f"{job.__name__} has another result each time")
    return results[0], took


def _point(job: "Make", photos: Path, backbone: Backbone, wanted: Any, moment: float) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        killed = job(Path(folder), photos, backbone)
        code = _run(killed.work, moment)
        try:
            if code not in (0, -signal.SIGKILL):
                return "lost"
            killed.look()
            code = _run(killed.work, None)
            if code is None:
                return "hung"
            if code == 0 and killed.result() == wanted:
                return "survived"
            why = f"the same again ended with {code}, or has another result"
        except Exception as error:
            why = repr(error)
        left = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))
        print(f"chaos: {job.__name__} killed after {moment:.3f} s: {why}; there: {left}", file=sys.stderr)
        return "lost"


def _run(work: Callable[[], None], moment: float | None) -> int | None:
    """How a process ended that does the work, killed at the moment; None: it hung."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setsid()
            with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - so that `os.dup2` is all there is to do
                os.dup2(nowhere.fileno(), 2)
            torch.set_num_threads(1)  # renews torch's pool, which threads of a forked child would race for
            work()
            code = 0
        finally:
            os._exit(code)
    ends = time.monotonic() + (SECONDS if moment is None else moment)
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)  # where it had not yet its own group
    _, status = os.waitpid(child, 0)
    return None if moment is None else os.waitstatus_to_exitcode(status)


def draw_photos(folder: Path) -> None:
    draws = np.random.default_rng(0)
    for place in range(PHOTOS):
        file = folder / ("cat", "dog")[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(file)


def _fit(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """As `pbprompt fit` does it, with a checkpoint after every step."""
    out, kind = folder / "model", find_method("coop")

    def work() -> None:
        if is_model(out):
            return
        bank = FeatureCache(backbone, cache=folder / "cache", progress=False)
        config = make_config(kind, overrides=["epochs=3", "batch_size=4"])
        with claim(out):
            model = TunedModel.fit(
                open_dataset(photos), bank, kind, config, FitOptions(folder=out, progress=False), samples=2
            )
            model.save(out)

    def look() -> None:
        if is_model(out):
            TunedModel.load(out, backbone)

    return Killed(work, look, lambda: opened(out).part(WEIGHTS))


def _streamed_fit(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """As `pbprompt fit` does it in one pass, with a checkpoint after every batch."""
    out, kind = folder / "model", find_method("conjugate")

    def work() -> None:
        if is_model(out):
            return
        records.FILES_AT_ONCE, checkpoint.SAVE_EVERY, checkpoint.SPARED = 5, 0.0, 0
        stream = Stream([photos])
        kept = stream_checkpoint(out, stream, backbone)
        with claim(out):
            found = gather_stream(stream, backbone, checkpoint=kept, progress=False)
            fit_gathered(found, backbone, kind, kind.Config(), Choices()).save(out)
        kept.remove()

    def look() -> None:
        if is_model(out):
            TunedModel.load(out, backbone)

    return Killed(work, look, lambda: opened(out).part(WEIGHTS))


class _Here:
    """An executor whose one worker is the sweep itself, so that a kill meets both."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.jobs += jobs

    def wait(self, timeout: float) -> list[Ended]:
        job = self.jobs.pop(0)
        return [Ended(job, *attempt(job.function, job.arguments))]

    def running(self) -> int:
        return len(self.jobs)

    def close(self) -> None:
        self.jobs.clear()


def _sweep(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """Three runs on `lite`, encoded and trained."""
    runs = [
        RunConfig(task="few-shot", dataset=str(photos), method="nearest-mean", shots=2, seed=seed, samples=1)
        for seed in (1, 2, 3)
    ]
    kept = RunStore(folder / "runs")

    def work() -> None:
        os.environ["PBPROMPT_CACHE"] = str(folder / "cache")
        outcome = sweep(runs, backbone="lite", root=None, store=kept, executor=_Here(), progress=False)
        if outcome.failed:
            raise RuntimeError("a run failed")

    def look() -> None:
        for record in kept.records():
            kept.arrays(record.id)

    def result() -> Any:
        look()
        return sorted((record.id, str(record.results)) for record in kept.records())

    return Killed(work, look, result)


def _export(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """Over an earlier file."""
    out, method = folder / "model.onnx", tiny_method(backbone, 1.0, ("cat", "dog"))
    model = TunedModel(method, describe_model(method), samples=1)
    out.write_bytes(b"earlier")

    def look() -> None:
        if out.read_bytes() != b"earlier":
            onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])

    def result() -> Any:
        look()
        return out.read_bytes() != b"earlier", [path.name for path in folder.iterdir()]

    return Killed(lambda: export_onnx(model, out) and None, look, result)


def _save(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """Two models that take each other's place, again and again."""
    two = [
        tiny_method(backbone, value, names) for value, names in ((1.0, ("cat", "dog")), (2.0, ("hen", "owl")))
    ]
    TunedModel(two[0], describe_model(two[0])).save(folder)

    def work() -> None:
        for turn in range(9):
            new = two[(turn + 1) % 2]
            TunedModel(new, describe_model(new)).save(folder)

    def look() -> None:
        found = TunedModel.load(folder, backbone).method
        value = next(found.parameters()).flatten()[0].item()
        if (value, found.classes) not in ((1.0, two[0].classes), (2.0, two[1].classes)):
            raise AssertionError("two models in one")

    def result() -> Any:
        return TunedModel.load(folder, backbone).classes, sorted(path.name for path in folder.iterdir())

    return Killed(work, look, result)


def _cache(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """Photographs encoded and kept, in shards of two."""
    paths = sorted(path.relative_to(photos) for path in photos.rglob("*.png"))
    items = [Item(str(path), 0) for path in paths]

    def encoded() -> Any:
        bank = FeatureCache(backbone, cache=folder / "cache", progress=False)
        features = bank.encode(photos, items)
        return features.global_.numpy().tobytes(), features.patches.numpy().tobytes()

    def result() -> Any:
        if not list((folder / "cache").glob("*/*.safetensors")):
            raise AssertionError("nothing was kept")
        return encoded()

    return Killed(lambda: encoded() and None, lambda: None, result)


def _predict(folder: Path, photos: Path, backbone: Backbone) -> Killed:
    """A folder and a tar, as `pbprompt predict --out` answers them, in parts of two images."""
    method = tiny_method(backbone, 1.0, ("cat", "dog"))
    model = TunedModel(method, describe_model(method), samples=1)
    out, failed = folder / "answers.jsonl", folder / "answers.failed.jsonl"
    tar = folder / "more.tar"
    with tarfile.open(tar, "w") as archive:
        for path in sorted(photos.rglob("*.png"))[:5]:
            archive.add(path, path.name)
        archive.addfile(tarfile.TarInfo("bad.png"))
    os.utime(tar, (0, 0))

    def work() -> None:
        records.FILES_AT_ONCE, batch_job.RECORDS, batch_job.CACHED_UNITS = 4, 2, 0
        whole = batch_job.BatchJob(backbone, model.predict, Stream([photos, tar]), {"model": "m"})
        output = Output(str(out))
        if out.exists() and not output.folder.exists():  # all was done: the same again would be refused
            return
        with output.opened(whole.identity(output.suffix)):
            if not output.finished:
                batch_job.run(whole, output, batch_job.here, progress=False)

    def look() -> None:
        if out.exists() and len(out.read_text().splitlines()) != PHOTOS + 5:
            raise AssertionError("not every image once")

    def result() -> Any:
        look()
        answers = out.read_text().replace(str(folder), "")
        return answers, len(failed.read_text().splitlines()), sorted(path.name for path in folder.iterdir())

    return Killed(work, look, result)


Make = Callable[[Path, Path, Backbone], Killed]
# With its share of the points.
JOBS: tuple[tuple[Make, int], ...] = (
    (_fit, 6),
    (_streamed_fit, 6),
    (_sweep, 2),
    (_export, 1),
    (_save, 14),
    (_cache, 14),
    (_predict, 6),
)
