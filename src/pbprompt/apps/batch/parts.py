"""From units to parts: so many images' answers as the content of a file, ready to be kept."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import torch

from pbprompt.apps.batch.formats import FEATURES, encode
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.learners.predictive import Prediction, Predictive
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.features.encode import Encoding, default_batch, encode_records
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Record, Unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

RECORDS = 1024  # of a part; a multiple of every batch, so that parts begin where batches do
CPU_RECORDS = 256  # of a part where they take seconds: what a kill loses is what is not yet in a part
AT_ONCE = 256  # images answered at once

Piece = TypeVar("Piece")
Result = TypeVar("Result")


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


AnswerWith = Callable[[Encoded], Predictive]  # a model's answers on some images


class Answer(NamedTuple):
    """What is said of one image, or why nothing can be, and its features."""

    name: str
    said: Prediction | InputError
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
    last: bool
    records: int
    rows: int
    answers: bytes
    failures: int
    failed: bytes


def make_parts(
    say: AnswerWith,
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
        parts = _joined(answered(say, todo, encoder), len, encoder.part, encoder.part)
        told = suffix, features, approximate
        begun = ((mark, pool.submit(_part, mark, chain(*held), *told)) for mark, held in parts)
        for _, part in _in_order(begun):
            yield part


def answered(say: AnswerWith, todo: Iterable[Todo], encoder: Encoder) -> Iterator[tuple[Mark, list[Answer]]]:
    """What is said of each image, in order, some hundred at a time; never of two parts at once.

    Another thread asks the model while the next images are encoded, so that the tower need not wait for it.
    """
    threads = torch.get_num_threads()  # as here, before the towers set theirs
    with ThreadPoolExecutor(1, "answer", initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        encoded = encoder.run(batches(todo, encoder.batch))
        some = _joined(encoded, lambda one: len(one.records), encoder.part, AT_ONCE)
        yield from _in_order((mark, pool.submit(_answers, say, held)) for mark, held in some)


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


def _in_order(begun: Iterable[tuple[Mark, Future[Result]]]) -> Iterator[tuple[Mark, Result]]:
    """What another thread makes, as early as may be; one more may be under way meanwhile."""
    pending: deque[tuple[Mark, Future[Result]]] = deque()
    for one in begun:
        pending.append(one)
        while pending and (len(pending) > 1 or pending[0][1].done()):
            mark, future = pending.popleft()
            yield mark, future.result()
    for mark, future in pending:
        yield mark, future.result()


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


def _part(mark: Mark, answers: Iterable[Answer], suffix: str, with_features: bool, approximate: str) -> Part:
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, said, features in answers:
        if isinstance(said, InputError):
            failed.append({"image": name, "reason": as_text(str(said))})
            continue
        row = {"image": name, **said.to_dict()}
        if with_features and features is not None:
            row[FEATURES] = features.tolist()
        if approximate:
            row["approximate"] = approximate
        rows.append(row)
    contents = len(rows), encode(rows, suffix), len(failed), encode(failed, suffix)
    return Part(*mark, len(rows) + len(failed), *contents)


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
