"""Answers on any number of images: streamed in, written in parts, gone on with after whatever ends it.

stream ──▶ units ──▶ features ──▶ answers ──▶ parts on the disk ──▶ one file
           data/     features/    model/      one by one, each     or a folder of parts
                                              whole, and listed
"""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pbprompt.apps.batch.output import Output, remaining
from pbprompt.apps.batch.parts import (
    Answer,
    AnswerWith,
    Encoder,
    Part,
    Todo,
    answered,
    cached,
    make_parts,
    streamed,
)
from pbprompt.errors import InputError
from pbprompt.model.decisions import NO_RULE, Rule
from pbprompt.model.folder import saved_state
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.encode import decoder_for
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images.stream import Files, Stream
from pbprompt.vision.towers.backbone import Backbone

VERSION = 2  # of what is in a part and in its manifest
CACHED_UNITS = 4  # so many thousand files of this machine have their features kept


@dataclass(frozen=True)
class BatchJob:
    """What answers, on which images; `settings` are what decides the answers besides, as JSON has it."""

    backbone: Backbone
    say: AnswerWith
    stream: Stream
    settings: dict[str, Any]
    features: bool = False  # written beside the answers

    @classmethod
    def of(
        cls, model: TunedModel, stream: Stream, rule: Rule = NO_RULE, *, features: bool = False
    ) -> "BatchJob":
        """A model's predictions on a stream, by a rule; `features`: write the images' features too.

        job = BatchJob.of(TunedModel.load("model/"), Stream(["photos/"]))
        for answer in answers(job): ...
        """
        settings = {
            "model": model_identity(model),
            "samples": [model.samples, model.seed],
            "temperature": model.info.temperature,
            "independent": model.independent,
            "rule": asdict(rule),
        } | ({} if model.class_mix is None else {"class_mix": model.class_mix})
        return cls(model.backbone, partial(model.predict, rule=rule), stream, settings, features)

    @property
    def approximate(self) -> str:
        """The approximate ways that features are made by, as each answer names them."""
        ways = {
            "fast-resize": self.backbone.preprocess.fast,
            "bfloat16": self.backbone.dtype == torch.bfloat16,
        }
        return ", ".join(way for way, used in ways.items() if used)

    def identity(self, suffix: str) -> dict[str, Any]:
        """By which an output is known to be this job's."""
        written = [suffix, "features"] if self.features else [suffix]
        known = {"version": VERSION, "images": self.stream.names, "columns": written, **self.settings}
        return known | ({"approximate": self.approximate} if self.approximate else {})

    def no_images(self) -> InputError:
        """A tar or a Parquet file tells only when it is read that it holds none."""
        return InputError(f"{', '.join(self.stream.names[:4])}: no images in it: give one that holds images")


Executor = Callable[[BatchJob, Output], Iterator[Part]]


def answers(job: BatchJob, *, progress: bool = False) -> Iterator[Answer]:
    """What is said of each image, in the stream's order, as it is made; nothing is written."""
    with encoder(job.backbone, job.stream) as encode, Progress("answering images", shown=progress) as shown:
        shown.expect(None)
        todo = (Todo(number, unit) for number, unit in enumerate(job.stream.units()))
        none = True
        for _, some in answered(job.say, todo, encode):
            yield from some
            shown.advance(len(some))
            none = False
    if none:
        raise job.no_images()


def run(job: BatchJob, output: Output, executor: Executor, *, progress: bool) -> None:
    """Answer what is left and finish the output, which is open; what a kill leaves, see `Output`."""
    with Progress("answering images", shown=progress) as shown:
        threading.Thread(target=_count, args=(job.stream, output, shown), daemon=True).start()
        with contextlib.closing(executor(job, output)) as parts:  # type: ignore[type-var]
            for part in parts:
                output.add(part)
                shown.advance(part.records)
    if not output.done:
        raise job.no_images()
    output.finish()


def here(job: BatchJob, output: Output) -> Iterator[Part]:
    """The parts, made on this machine."""
    with encoder(job.backbone, job.stream) as encode:
        todo = output.todo(job.stream.units())
        make = partial(make_parts, features=job.features, approximate=job.approximate)
        yield from make(job.say, todo, encode, output.suffix)


@contextlib.contextmanager
def encoder(backbone: Backbone, stream: Stream) -> Iterator[Encoder]:
    """What encodes the stream: with the cache where it is a folder of ordinary size, otherwise without."""
    if _few_files(stream):
        yield cached(backbone)
        return
    with contextlib.closing(decoder_for(backbone)) as decoder:
        yield streamed(backbone, decoder)


def _few_files(stream: Stream) -> bool:
    units = stream.few(CACHED_UNITS)
    files = [record.content for unit in units if isinstance(unit, Files) for record in unit.files]
    whole = bool(units) and all(isinstance(unit, Files) for unit in units)
    return whole and all(isinstance(content, Path) for content in files)


def _count(stream: Stream, output: Output, shown: Progress) -> None:
    """How many images are left, found out beside the work, for the time left."""
    try:
        for _, unit, skip in remaining(stream.units(), dict(output.done), str(output.path)):
            if (count := unit.count()) is None:  # a tar from elsewhere tells only when it is read
                shown.expect(None)
                return
            shown.expect(count - skip)
    except Exception:  # the work itself comes across it, and says so
        shown.expect(None)


def model_identity(model: TunedModel) -> str:
    """Of all that a tuned model answers by, but for the sampling."""
    digest, method = hashlib.sha256(), model.method
    for name, value in sorted(saved_state(model).items()):
        digest.update(name.encode() + value.numpy().tobytes())
    tower = [method.backbone.fingerprint, str(method.backbone.dtype)]
    digest.update(json.dumps([method.name, method.classes, method.template, *tower]).encode())
    return digest.hexdigest()
