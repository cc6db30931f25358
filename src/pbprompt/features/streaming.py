"""The frozen image tower over a stream: while it runs on some images, others are read and decoded.

    records ──▶ read and decoded in processes ──▶ batches through the tower ──▶ features, in order

Each arrow holds so many images and no more: where the taker of the features waits, so does the source.
"""

import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.data.processors import available_cpus
from pbprompt.data.stream import Record
from pbprompt.data.stream.decoding import Geometry, Square, SquareDecoders
from pbprompt.data.transforms import normalise
from pbprompt.errors import InputError

MOST_DECODERS = 16
QUESTION = 4  # images that a decoding process is asked for at once
READERS = 8  # threads that wait for files, which may come from far away

One = TypeVar("One")
Mark = TypeVar("Mark")


class Encoding(NamedTuple):
    """A batch: its records, and the features of those that could be read, in their order."""

    records: Sequence[Record]
    failures: dict[int, InputError]  # by place among the records
    global_: Float[Tensor, "n d"]
    patches: Float[Tensor, "n m d"]


def decoders_for(backbone: Backbone) -> SquareDecoders:
    """As many as feed the tower; on a CPU that takes most of the processors itself."""
    processors = available_cpus()
    on_cpu = backbone.device.type == "cpu"
    return SquareDecoders(max(1, processors // 2) if on_cpu else min(processors, MOST_DECODERS))


def encode_stream(
    backbone: Backbone, batches: Iterable[tuple[Mark, Sequence[Record]]], decoders: SquareDecoders
) -> Iterator[tuple[Mark, Encoding]]:
    """The features of each batch, with the mark that it came with, in order.

    Batches are the caller's, so that the same ones give the same bits, wherever a stream is gone on with.
    """
    threads, towers = torch.get_num_threads(), _towers(backbone)
    pool = ThreadPoolExecutor(
        towers,
        thread_name_prefix="tower",
        initializer=torch.set_num_threads,
        initargs=(1 if towers > 1 else threads,),
    )
    pending: deque[tuple[Mark, Future[Encoding]]] = deque()
    decoded = _decoded(batches, decoders, backbone.preprocess.geometry)
    try:
        for mark, records, squares in decoded:
            pending.append((mark, pool.submit(_encode, backbone, records, squares)))
            if len(pending) > towers:
                mark, encoding = pending.popleft()
                yield mark, encoding.result()
        while pending:
            mark, encoding = pending.popleft()
            yield mark, encoding.result()
    finally:
        decoded.close()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # the pool's number is also what later threads would start with


def most_batches_ahead(backbone: Backbone, decoders: SquareDecoders) -> int:
    """How many batches are taken from the source at most before the features of the first are handed on."""
    return 2 * _readers(decoders) + _towers(backbone) + 3


def _towers(backbone: Backbone) -> int:
    """On a CPU every processor runs the tower on batches of its own, as in `encode_files`."""
    return torch.get_num_threads() if backbone.device.type == "cpu" else 1


def _readers(decoders: SquareDecoders) -> int:
    return max(READERS, decoders.count)


def _decoded(
    batches: Iterable[tuple[Mark, Sequence[Record]]], decoders: SquareDecoders, geometry: Geometry
) -> Generator[tuple[Mark, Sequence[Record], list[Square | InputError]], None, None]:
    """A thread of its own reads the source, others ask the processes."""
    pool = ThreadPoolExecutor(_readers(decoders), thread_name_prefix="decode")
    pending: deque[tuple[Mark, Sequence[Record], list[Future[list[Square | InputError]]]]] = deque()
    source = _read_ahead(iter(batches))
    try:
        for mark, records in source:
            questions = [records[at : at + QUESTION] for at in range(0, len(records), QUESTION)]
            asked = [pool.submit(decoders.decode, some, geometry) for some in questions]
            pending.append((mark, records, asked))
            while sum(len(futures) for _, _, futures in pending) > 2 * _readers(decoders):
                yield _answered(*pending.popleft())
        while pending:
            yield _answered(*pending.popleft())
    finally:
        source.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _answered(
    mark: Mark, records: Sequence[Record], asked: list[Future[list[Square | InputError]]]
) -> tuple[Mark, Sequence[Record], list[Square | InputError]]:
    return mark, records, [square for future in asked for square in future.result()]


def _read_ahead(items: Iterator[One]) -> Generator[One, None, None]:
    """The same, one ahead in a thread, so that a slow source is waited for while other work is done."""
    ready: queue.Queue[tuple[One | None, BaseException | None]] = queue.Queue(1)
    stopped = threading.Event()

    def put(one: tuple[One | None, BaseException | None]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(one, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((None, StopIteration()))
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=1.0)  # it may wait for a source that is far away


@torch.inference_mode()
def _encode(
    backbone: Backbone, records: Sequence[Record], squares: Sequence[Square | InputError]
) -> Encoding:
    failures = {place: one for place, one in enumerate(squares) if isinstance(one, InputError)}
    places = [place for place in range(len(squares)) if place not in failures]
    if not places:
        rows = torch.empty(0, backbone.grid[0] * backbone.grid[1], backbone.embed_dim, dtype=torch.float16)
        return Encoding(records, failures, torch.empty(0, backbone.embed_dim), rows)
    test = backbone.preprocess
    pixels = torch.from_numpy(np.stack([one for one in squares if not isinstance(one, InputError)]))
    encoded = backbone.image(normalise(pixels.to(backbone.device), test.mean, test.std))
    global_, patches = encoded.global_.float(), encoded.patches.half()
    finite = global_.isfinite().all(dim=1) & patches.isfinite().flatten(1).all(dim=1)
    for place, good in zip(places, finite.tolist(), strict=True):
        if not good:
            why = f"its features overflow in {backbone.dtype}: use float32, or other weights"
            failures[place] = InputError(f"{records[place].name}: {why}")
    return Encoding(records, failures, global_[finite].cpu(), patches[finite].cpu())
