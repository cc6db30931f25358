"""Answers on any number of images: streamed in, written in parts, gone on with after whatever ends it.

stream ──▶ units ──▶ features ──▶ answers ──▶ parts on the disk ──▶ one file
           data/     features/    model/      one by one, each     or a folder of parts
                                              whole, and listed
"""

import contextlib
import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from pbprompt.apps.batch.formats import FEATURES, encode
from pbprompt.apps.batch.output import Output, Part, Todo, remaining
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.learners.predictive import Prediction, Predictive
from pbprompt.model.decisions import NO_RULE, Rule
from pbprompt.model.folder import saved_state
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.encode import Encoding, decoder_for, default_batch, encode_records
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Files, Record, Stream
from pbprompt.vision.towers.backbone import Backbone, Encoded

VERSION = 2  # of what is in a part and in its manifest
CACHED_UNITS = 4  # so many thousand files of this machine have their features kept
RECORDS = 1024  # of a part; a multiple of every batch, so that parts begin where batches do
CPU_RECORDS = 256  # of a part where they take seconds: what a kill loses is what is not yet in a part
AT_ONCE = 256  # images answered at once

Piece = TypeVar("Piece")
Result = TypeVar("Result")
AnswerWith = Callable[[Encoded], Predictive]  # a model's answers on some images


@dataclass(frozen=True)
class BatchJob:
    """What answers, on which images; `settings` are what decides the answers besides, as JSON has it."""

    backbone: Backbone
    answer_with: AnswerWith
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
        fast = ["fast-resize"] if self.backbone.preprocess.fast else []
        return ", ".join(fast + (["bfloat16"] if self.backbone.dtype == torch.bfloat16 else []))

    def identity(self, suffix: str) -> dict[str, Any]:
        """By which an output is known to be this job's."""
        written = [suffix, "features"] if self.features else [suffix]
        known = {"version": VERSION, "images": self.stream.names, "columns": written, **self.settings}
        return known | ({"approximate": self.approximate} if self.approximate else {})

    def no_images(self) -> InputError:
        """A tar or a Parquet file tells only when it is read that it holds none."""
        return InputError(f"{', '.join(self.stream.names[:4])}: no images in it: give one that holds images")


def model_identity(model: TunedModel) -> str:
    """Of all that a tuned model answers by, but for the sampling."""
    digest, method = hashlib.sha256(), model.method
    for name, value in sorted(saved_state(model).items()):
        digest.update(name.encode() + value.numpy().tobytes())
    tower = [method.backbone.fingerprint, str(method.backbone.dtype)]
    digest.update(json.dumps([method.name, method.classes, method.template, *tower]).encode())
    return digest.hexdigest()


Executor = Callable[[BatchJob, Output], Iterator[Part]]


class Mark(NamedTuple):
    """Where a batch belongs: its unit, its first record there, and whether it is the unit's last batch."""

    unit: int
    identity: str
    first: int
    last: bool


class Answer(NamedTuple):
    """What is said of one image, or why nothing can be, and its features."""

    name: str
    said: Prediction | InputError
    features: torch.Tensor | None


def answers(job: BatchJob, *, progress: bool = False) -> Iterator[Answer]:
    """What is said of each image, in the stream's order, as it is made; nothing is written."""
    with encoder(job.backbone, job.stream) as encode, Progress("answering images", shown=progress) as shown:
        shown.expect(None)
        todo = (Todo(number, unit) for number, unit in enumerate(job.stream.units()))
        none = True
        for _, some in answered(job.answer_with, todo, encode):
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


def here(job: BatchJob, output: Output) -> Iterator[Part]:
    """The parts, made on this machine."""
    with encoder(job.backbone, job.stream) as encode:
        todo = output.todo(job.stream.units())
        make = partial(make_parts, features=job.features, approximate=job.approximate)
        yield from make(job.answer_with, todo, encode, output.suffix)


# from units to parts: so many images' answers as the content of a file, ready to be kept


class Encoder(NamedTuple):
    """What makes features of batches of `batch` records of one unit, of which `part` make a part."""

    run: Callable[[Iterable[tuple[Mark, list[Record]]]], Iterator[tuple[Mark, Encoding]]]
    batch: int
    part: int


@contextlib.contextmanager
def encoder(backbone: Backbone, stream: Stream) -> Iterator[Encoder]:
    """What encodes the stream: with the cache where it is a folder of ordinary size, otherwise without."""
    units = stream.few(CACHED_UNITS)
    files = [record.content for unit in units if isinstance(unit, Files) for record in unit.files]
    whole = bool(units) and all(isinstance(unit, Files) for unit in units)
    if whole and all(isinstance(content, Path) for content in files):
        bank = FeatureCache(backbone, progress=False)
        yield Encoder(bank.encode_files, AT_ONCE, _part_size(backbone))
        return
    with contextlib.closing(decoder_for(backbone)) as decoder:
        yield streamed(backbone, decoder)


def streamed(backbone: Backbone, decoder: Decoder) -> Encoder:
    """Encodes whatever comes, and keeps nothing."""
    encode = partial(encode_records, backbone, decoder=decoder)
    return Encoder(encode, default_batch(backbone.device), _part_size(backbone))


def _part_size(backbone: Backbone) -> int:
    return min(RECORDS, CPU_RECORDS) if backbone.device.type == "cpu" else RECORDS


def make_parts(
    answer_with: AnswerWith,
    todo: Iterable[Todo],
    encoder: Encoder,
    suffix: str,
    *,
    features: bool = False,
    approximate: str = "",
) -> Iterator[Part]:
    """The parts of the units in order, as files of that kind, perhaps with the images' features and with the
    approximate ways that these were made by.

    What a part is depends on its unit alone, not on what was done before. Another thread writes one part down
    while the next one's images are answered.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool:
        parts = _joined(answered(answer_with, todo, encoder), len, encoder.part, encoder.part)
        how = suffix, features, approximate
        yield from _in_order(pool.submit(make_part, mark, chain(*held), *how) for mark, held in parts)


def answered(
    answer_with: AnswerWith, todo: Iterable[Todo], encoder: Encoder
) -> Iterator[tuple[Mark, list[Answer]]]:
    """What is said of each image, in order, some hundred at a time; never of two parts at once.

    Another thread asks the model while the next images are encoded, so that the tower need not wait for it.
    """
    threads = torch.get_num_threads()  # as here, before the towers set theirs
    with ThreadPoolExecutor(1, "answer", initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        encoded = encoder.run(batches(todo, encoder.batch))
        some = _joined(encoded, lambda one: len(one.records), encoder.part, AT_ONCE)
        yield from _in_order(pool.submit(_answers, mark, answer_with, held) for mark, held in some)


def batches(todo: Iterable[Todo], size: int) -> Iterator[tuple[Mark, list[Record]]]:
    """So many records of one unit at a time."""
    for number, unit, skip in todo:
        identity, records = unit.identity, iter(unit.records(skip))
        some, first = list(islice(records, size)), skip
        while some:
            following = list(islice(records, size))
            yield Mark(number, identity, first, not following), some
            some, first = following, first + len(some)


def _joined(
    pieces: Iterable[tuple[Mark, Piece]], size: Callable[[Piece], int], part: int, most: int
) -> Iterator[tuple[Mark, list[Piece]]]:
    """Pieces of one part that follow one another, until there are so many records of them."""
    held: list[Piece] = []
    records = 0
    for mark, piece in pieces:
        held.append(piece)
        records += size(piece)
        end = mark.first + size(piece)
        if mark.last or end % part == 0 or records >= most:
            yield mark._replace(first=end - records), held
            held, records = [], 0


def _in_order(begun: Iterable[Future[Result]]) -> Iterator[Result]:
    """What another thread makes, as early as may be; one more may be under way meanwhile."""
    pending: deque[Future[Result]] = deque()
    for one in begun:
        pending.append(one)
        while pending and (len(pending) > 1 or pending[0].done()):
            yield pending.popleft().result()
    yield from (one.result() for one in pending)


def _answers(mark: Mark, answer_with: AnswerWith, encodings: Sequence[Encoding]) -> tuple[Mark, list[Answer]]:
    images = Encoded(*(torch.cat(parts) for parts in zip(*(one.encoded for one in encodings), strict=True)))
    found, features = iter(answer_with(images) if len(images.global_) else ()), iter(images.global_)
    answers = []
    for one in encodings:
        for place, record in enumerate(one.records):
            failure = one.failures.get(place)
            answers.append(Answer(record.name, failure or next(found), None if failure else next(features)))
    return mark, answers


def make_part(mark: Mark, answers: Iterable[Answer], suffix: str, features: bool, approximate: str) -> Part:
    """Answers that follow one another as the content of two files, of answers and of failures."""
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, answer, image in answers:
        if isinstance(answer, InputError):
            failed.append({"image": name, "reason": as_text(str(answer))})
            continue
        row = {"image": name, **answer.to_dict()}
        if features and image is not None:
            row[FEATURES] = image.tolist()
        rows.append(row | ({"approximate": approximate} if approximate else {}))
    contents = len(rows), encode(rows, suffix), len(failed), encode(failed, suffix)
    return Part(*mark, len(rows) + len(failed), *contents)
