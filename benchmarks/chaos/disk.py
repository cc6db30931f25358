"""A fault at every system call by which something is kept: the process dies, or the disk is full or broken.

Each point is a child process of its own that meets one fault at its n-th call. Then what is on the disk is
looked at: what was there before, or what was to come, whole, or refused in words; and the same again works.
"""

import errno
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pbprompt.apps.batch.output import Output, Part
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.checkpoint import Tally, read_checkpoint, write_checkpoint
from pbprompt.prompts.loop.step import make_optimiser
from pbprompt.registry import find_method
from pbprompt.research.runs import BackboneFacts, DataFacts, RunConfig, RunRecord, RunStore
from pbprompt.vision.features.checkpoint import Checkpoint
from pbprompt.vision.features.store import FeatureStore
from pbprompt.vision.images import stream
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate")
FAULTS = ("killed before", "killed after", "ENOSPC", "EIO", "short")
SECONDS = 300.0  # after which a child counts as hung

Outcome = str  # survived, refused, lost or hung


class _Unbuffered:
    """A file whose writes are calls of `os.write`, and so can meet a fault."""

    def __init__(self, handle: int, mode: str) -> None:
        self.handle = handle

    def __enter__(self) -> "_Unbuffered":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)

    def write(self, content: bytes) -> None:
        if os.write(self.handle, content) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device")

    def writelines(self, contents: Iterable[bytes]) -> None:
        for content in contents:
            self.write(content)

    def flush(self) -> None:
        pass


def _inject(fault: str, at: int) -> list[str]:
    """Let the at-th call of this process meet the fault; returns the calls as they are made."""
    made: list[str] = []

    def faulty(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            made.append(name)
            if len(made) - 1 != at:
                return call(*given, **named)
            if fault == "killed before":
                os._exit(9)
            if fault == "short" and name == "write":
                return call(given[0], given[1][: len(given[1]) // 2])
            if fault in ("ENOSPC", "EIO"):
                code = getattr(errno, fault)
                raise OSError(code, os.strerror(code))
            answer = call(*given, **named)
            if fault == "killed after":
                os._exit(9)
            return answer

        return run

    for name in CALLS:
        setattr(os, name, faulty(name, getattr(os, name)))
    os.fdopen = _Unbuffered  # type: ignore[assignment]
    return made


def _child(work: Callable[[], None], fault: str, at: int) -> int | None:
    """How a child that does the work with the fault ended; None: it hung."""
    child = os.fork()
    if not child:
        code = 4
        try:
            torch.set_num_threads(1)  # renews torch's pool, which threads of a forked child would race for
            made = _inject(fault, at)
            work()
            code = 0 if at < len(made) else 5  # there is no at-th call
        except (OSError, InputError):
            code = 3
        finally:
            os._exit(code)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def attack() -> Iterator[tuple[str, Counter[Outcome]]]:
    """Each thing that is kept, and how it fared at all of its points."""
    torch.set_num_threads(1)  # a forked child has none of the others
    backbone = tiny_backbone()
    for case in (_saved_model, _checkpoint, _gathered, _run_store, _features, _answers):
        counts: Counter[Outcome] = Counter()
        for fault in FAULTS:
            at, more = 0, True
            while more:
                with tempfile.TemporaryDirectory() as folder:
                    before, work, look = case(Path(folder), backbone)
                    before()
                    code = _child(work, fault, at)
                    more, at = code not in (None, 4, 5), at + 1  # 4: it would fail so without a fault too
                    if code != 5:
                        counts["hung" if code is None else _judged(code, work, look)] += 1
        yield case.__name__.strip("_").replace("_", " "), counts


def tiny_backbone() -> Backbone:
    """Of random weights, which take milliseconds."""
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=1)
    return random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 1, 4), text))


def _judged(code: int, work: Callable[[], None], look: Callable[[], bool]) -> Outcome:
    """`look` says whether the new is there, and raises AssertionError where it is neither old nor new."""
    try:
        try:
            assert look() or code != 0, "said to be kept, and is not"
            outcome = "survived"
        except InputError:
            outcome = "refused"
        work()  # the same again
        assert code != 4 and look(), "the same again does not keep it"
    except Exception:
        return "lost"
    return outcome


Case = tuple[Callable[[], None], Callable[[], None], Callable[[], bool]]


def tiny_method(backbone: Backbone, value: float, classes: tuple[str, ...]) -> Trained:
    """One all of whose parameters have this value."""
    kind = find_method("coop")
    method = build_method(kind, make_config(kind), backbone, seed=1)
    method.prepare(classes, "a photo of a {}.")
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.fill_(value)
    return method


def _saved_model(folder: Path, backbone: Backbone) -> Case:
    old, new = tiny_method(backbone, 1.0, ("cat", "dog")), tiny_method(backbone, 2.0, ("hen", "owl"))

    def look() -> bool:
        found = TunedModel.load(folder, backbone).method
        value = next(found.parameters()).flatten()[0].item()
        assert (value, found.classes) in ((1.0, old.classes), (2.0, new.classes)), "two models in one"
        return value == 2.0

    return (
        lambda: TunedModel(old, describe_model(old)).save(folder),
        lambda: TunedModel(new, describe_model(new)).save(folder),
        look,
    )


def _checkpoint(folder: Path, backbone: Backbone) -> Case:
    path = folder / "checkpoint.safetensors"

    def write(step: int) -> None:
        method = tiny_method(backbone, float(step), ("cat", "dog"))
        write_checkpoint(path, method, make_optimiser(method), step, "run", Tally())

    def look() -> bool:
        method = tiny_method(backbone, 0.0, ("cat", "dog"))
        step, _ = read_checkpoint(path, method, make_optimiser(method), "run")
        assert next(method.parameters()).flatten()[0].item() == step
        return step == 2

    return lambda: write(1), lambda: write(2), look


def _gathered(folder: Path, backbone: Backbone) -> Case:
    """What a pass over a stream keeps of itself."""
    kept = Checkpoint(folder / "kept", {"images": ["a.tar"]})

    def write(images: int) -> None:
        kept.write(({"sums": torch.full((3, 4), float(images))}, {"images": images}))

    def look() -> bool:
        found = kept.read()
        assert found is not None and (found[0]["sums"] == found[1]["images"]).all()
        return bool(found[1]["images"] == 2)

    return lambda: write(1), lambda: write(2), look


def _run_store(folder: Path, backbone: Backbone) -> Case:
    store = RunStore(folder)

    def add(identity: str) -> None:
        facts = DataFacts("sample", "c", "d"), BackboneFacts("lite", "f")
        config = RunConfig(task="few-shot", dataset="sample")
        results = {"sample": {"accuracy": 0.5}}
        record = RunRecord(
            id=identity, config=config, settings={}, data=facts[0], backbone=facts[1], code="1", seconds=1.0,
            results=results,
        )  # fmt: skip
        store.add(record, {"sample/label": np.arange(9)})

    def look() -> bool:
        ids = {record.id for record in store.records()}
        assert "a" in ids and ids <= {"a", "b"}
        assert all(len(store.arrays(identity)["sample/label"]) == 9 for identity in ids)
        return "b" in ids

    return lambda: add("a"), lambda: add("b"), look


def _features(folder: Path, backbone: Backbone) -> Case:
    store = FeatureStore(folder, backbone="b", fingerprint="f", precision="float32", transform="t")

    def write(key: str, value: float) -> None:
        store.write([key], torch.full((1, 4), value), torch.full((1, 3, 4), value).half())

    def look() -> bool:
        global_, patches = torch.zeros(2, 4), torch.zeros(2, 3, 4).half()
        missing = store.read(["a", "b"], global_, patches)
        assert 0 not in missing and (global_[0] == 1).all() and (patches[0] == 1).all()
        assert 1 in missing or ((global_[1] == 2).all() and (patches[1] == 2).all())
        return 1 not in missing

    with suppress(OSError):
        folder.mkdir(exist_ok=True)
    return lambda: write("a", 1.0), lambda: write("b", 2.0), look


def _answers(folder: Path, backbone: Backbone) -> Case:
    """Of a job of two parts, one with an image that cannot be read, from its first part to its one file."""
    units = [stream.Files((stream.Record(name, b""),)) for name in "ab"]
    rows, out = (b'{"image": "a"}\n', b'{"image": "b"}\n'), folder / "answers.jsonl"

    def work() -> None:
        try:
            answer()
        except InputError:  # of a finished job, the same again is refused; its answers stay as they are
            if not look():
                raise

    def answer() -> None:
        with Output(str(out)).opened({"model": "m"}) as output:
            for number, unit, _ in output.todo(units):
                failed = b'{"image": "c", "reason": "r"}\n' if number else b""
                output.add(
                    Part(number, unit.identity, 0, True, 1, 1, rows[number], len(failed) // 29, failed)
                )
            if not output.finished:
                output.finish()

    def look() -> bool:
        if not out.exists():
            return False
        assert out.read_bytes() == b"".join(rows) and (folder / "answers.failed.jsonl").exists()
        return True

    return lambda: None, work, look
