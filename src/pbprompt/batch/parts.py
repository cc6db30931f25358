"""From units to parts: so many images' answers as the content of a file, ready to be kept."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch

from pbprompt.batch.formats import FEATURES, encode
from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.data.decoding import Decoder
from pbprompt.data.stream import Record, Unit
from pbprompt.errors import InputError
from pbprompt.features.bank import FeatureBank
from pbprompt.features.encode import Encoding, default_batch, encode_records
from pbprompt.files import as_text

RECORDS = 1024  # of a part; a multiple of every batch, so that parts begin where batches do
CPU_RECORDS = 256  # of a part where they take seconds: what a kill loses is what is not yet in a part
AT_ONCE = 256  # images answered at once


class Todo(NamedTuple):
    """A unit by its number in the stream, of which the first `skip` records are done."""

    number: int
    unit: Unit
    skip: int = 0


class Mark(NamedTuple):
    """Where a batch belongs: its unit, its first record there, and whether it is the unit's last batch."""

    unit: int
    identity: str
    first: int
    last: bool


class GivenAnswer(Protocol):
    """What a model says of one image."""

    def to_dict(self) -> dict[str, Any]: ...


AnswerWith = Callable[[Encoded], Sequence[GivenAnswer]]  # a model's answers on some images


class Answer(NamedTuple):
    """What is said of one image, or why nothing can be, and its features."""

    name: str
    said: GivenAnswer | InputError
    features: torch.Tensor | None


class Encoder(NamedTuple):
    """What makes features of batches of `batch` records of one unit, of which `part` make a part."""

    run: Callable[[Iterable[tuple[Mark, list[Record]]]], Iterator[tuple[Mark, Encoding]]]
    batch: int
    part: int


class Part(NamedTuple):
    """The records from `first` on of one unit: so many, and what is said of them."""

    unit: int
    identity: str
    first: int
    records: int
    last: bool
    rows: int
    answers: bytes
    failures: int
    failed: bytes


class Written(NamedTuple):
    """How answers are written: as what kind of file, and whether with the images' features."""

    suffix: str
    features: bool = False


def make_parts(say: AnswerWith, todo: Iterable[Todo], encoder: Encoder, written: Written) -> Iterator[Part]:
    """The parts of the units in order. What a part is depends on its unit alone, not on what was done before.

    Another thread writes one part down while the next one's images are answered.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="write")
    pending: deque[Future[Part]] = deque()
    held: list[Answer] = []
    try:
        for mark, answers in answered(say, todo, encoder):
            held += answers
            end = mark.first + len(answers)
            if mark.last or end % encoder.part == 0:
                start = Mark(mark.unit, mark.identity, end - len(held), mark.last)
                pending.append(pool.submit(_part, start, held, written))
                held = []
                if len(pending) > 1:
                    yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def answered(say: AnswerWith, todo: Iterable[Todo], encoder: Encoder) -> Iterator[tuple[Mark, list[Answer]]]:
    """What is said of each image, in order, some hundred at a time; never of two parts at once.

    Another thread asks the model while the next images are encoded, so that the tower need not wait for it.
    """
    pool = ThreadPoolExecutor(
        1,
        thread_name_prefix="answer",
        initializer=torch.set_num_threads,
        initargs=(torch.get_num_threads(),),  # as here, before the towers set theirs
    )
    pending: deque[tuple[Mark, Future[list[Answer]]]] = deque()
    held: list[Encoding] = []
    try:
        for mark, encoding in encoder.run(batches(todo, encoder.batch)):
            held.append(encoding)
            records = sum(len(one.records) for one in held)
            end = mark.first + len(encoding.records)
            if mark.last or end % encoder.part == 0 or records >= AT_ONCE:
                at = Mark(mark.unit, mark.identity, end - records, mark.last)
                pending.append((at, pool.submit(_answers, say, held)))
                held = []
            while pending and (len(pending) > 1 or pending[0][1].done()):  # to be kept as early as may be
                at, answers = pending.popleft()
                yield at, answers.result()
        while pending:
            at, answers = pending.popleft()
            yield at, answers.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _answers(say: AnswerWith, encodings: Sequence[Encoding]) -> list[Answer]:
    global_ = torch.cat([one.global_ for one in encodings])
    patches = torch.cat([one.patches for one in encodings])
    said = iter(say(Encoded(global_, patches)) if len(global_) else ())
    features = iter(global_)
    answers = []
    for one in encodings:
        for place, record in enumerate(one.records):
            failure = one.failures.get(place)
            answers.append(Answer(record.name, failure or next(said), None if failure else next(features)))
    return answers


def _part(mark: Mark, answers: Sequence[Answer], written: Written) -> Part:
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, said, features in answers:
        if isinstance(said, InputError):
            failed.append({"image": name, "reason": as_text(str(said))})
            continue
        row = {"image": name, **said.to_dict()}
        if written.features and features is not None:
            row[FEATURES] = features.tolist()
        rows.append(row)
    return Part(
        mark.unit,
        mark.identity,
        mark.first,
        len(answers),
        mark.last,
        len(rows),
        encode(rows, written.suffix),
        len(failed),
        encode(failed, written.suffix),
    )


def batches(todo: Iterable[Todo], size: int) -> Iterator[tuple[Mark, list[Record]]]:
    """So many records of one unit at a time."""
    for number, unit, skip in todo:
        identity, records = unit.identity, iter(unit.records(skip))
        some, first = list(islice(records, size)), skip
        while some:
            following = list(islice(records, size))
            yield Mark(number, identity, first, not following), some
            some, first = following, first + len(some)


def streamed(backbone: Backbone, decoder: Decoder) -> Encoder:
    """Encodes whatever comes, and keeps nothing."""
    run = partial(encode_records, backbone, decoder=decoder)
    return Encoder(run, default_batch(backbone.device), _part_size(backbone))


def cached(backbone: Backbone) -> Encoder:
    """Encodes files of this machine, and keeps their features for the next time."""
    return Encoder(FeatureBank(backbone, progress=False).encode_files, AT_ONCE, _part_size(backbone))


def _part_size(backbone: Backbone) -> int:
    return min(RECORDS, CPU_RECORDS) if backbone.device.type == "cpu" else RECORDS
