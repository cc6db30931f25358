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
from jaxtyping import Bool, Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.data.processors import available_cpus
from pbprompt.data.squares import Geometry
from pbprompt.data.stream import Record
from pbprompt.data.stream.decoding import Square, SquareDecoders
from pbprompt.data.transforms import normalise
from pbprompt.errors import InputError

MOST_DECODERS = 32  # each takes some thirty megabytes, and more while it has a large image
QUESTION = 8  # images that a decoding process is asked for at once
READERS = 8  # threads beside one a process: they wait for files, which may come from far away
QUEUED = 2  # batches that a GPU has been given: while it runs one, the next is there already

One = TypeVar("One")
Mark = TypeVar("Mark")


class Encoding(NamedTuple):
    """A batch: its records, and the features of those that could be read, in their order."""

    records: Sequence[Record]
    failures: dict[int, InputError]  # by place among the records
    global_: Float[Tensor, "n d"]  # in this machine's memory
    patches: Float[Tensor, "n m d"]  # on the tower's device, where most of them end: they are large


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
    threads, towers, ahead = torch.get_num_threads(), _towers(backbone), _ahead(backbone)
    pool = ThreadPoolExecutor(
        towers,
        thread_name_prefix="tower",
        initializer=torch.set_num_threads,
        initargs=(1 if towers > 1 else threads,),
    )
    pending: deque[tuple[Mark, Future[_Begun]]] = deque()
    decoded = _decoded(batches, decoders, backbone.preprocess.geometry)
    try:
        for mark, records, squares in decoded:
            pending.append((mark, pool.submit(_begin, backbone, records, squares)))
            if len(pending) > ahead:
                mark, begun = pending.popleft()
                yield mark, _end(backbone, begun.result())
        while pending:
            mark, begun = pending.popleft()
            yield mark, _end(backbone, begun.result())
    finally:
        decoded.close()
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # the pool's number is also what later threads would start with


def most_batches_ahead(backbone: Backbone, decoders: SquareDecoders) -> int:
    """How many batches are taken from the source at most before the features of the first are handed on."""
    return 2 * _readers(decoders) + _ahead(backbone) + 3


def _towers(backbone: Backbone) -> int:
    """On a CPU every processor runs the tower on batches of its own, as in `encode_files`."""
    return torch.get_num_threads() if backbone.device.type == "cpu" else 1


def _ahead(backbone: Backbone) -> int:
    """Batches given to the tower before the features of the first are waited for."""
    return _towers(backbone) if backbone.device.type == "cpu" else QUEUED


def _readers(decoders: SquareDecoders) -> int:
    return decoders.count + READERS


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


class _Begun(NamedTuple):
    """A batch that a GPU may still be busy with: until `done`, none of the tensors is to be looked at."""

    records: Sequence[Record]
    failures: dict[int, InputError]
    global_: Float[Tensor, "n d"]
    patches: Float[Tensor, "n m d"]
    finite: Bool[Tensor, " n"]
    done: torch.cuda.Event | None


@torch.inference_mode()
def _begin(backbone: Backbone, records: Sequence[Record], squares: Sequence[Square | InputError]) -> _Begun:
    """Give the tower a batch. A GPU is not waited for, so that the next batch can be made ready meanwhile."""
    failures = {place: one for place, one in enumerate(squares) if isinstance(one, InputError)}
    read = [one for one in squares if not isinstance(one, InputError)]
    if not read:
        rows = torch.empty(0, backbone.grid[0] * backbone.grid[1], backbone.embed_dim, dtype=torch.float16)
        none = torch.empty(0, backbone.embed_dim)
        return _Begun(records, failures, none, rows.to(backbone.device), none.isfinite().all(dim=1), None)
    test, on_cuda = backbone.preprocess, backbone.device.type == "cuda"
    # from pinned memory a GPU copies by itself, behind what it is doing
    pixels = torch.empty((len(read), *read[0].shape), dtype=torch.uint8, pin_memory=on_cuda)
    np.stack(read, out=pixels.numpy())
    seen = pixels.to(backbone.device, non_blocking=on_cuda)
    encoded = backbone.image(normalise(seen, test.mean, test.std))
    global_, patches = encoded.global_.float(), encoded.patches.half()
    finite = global_.isfinite().all(dim=1) & patches.isfinite().flatten(1).all(dim=1)
    global_, finite = (one.to("cpu", non_blocking=on_cuda) for one in (global_, finite))
    done = torch.cuda.Event(blocking=True) if on_cuda else None
    if done is not None:
        done.record(torch.cuda.current_stream(backbone.device))
    return _Begun(records, failures, global_, patches, finite, done)


@torch.inference_mode()
def _end(backbone: Backbone, begun: _Begun) -> Encoding:
    """The batch's features, once they are there."""
    records, failures, global_, patches, finite, done = begun
    if done is not None:
        done.synchronize()
    if finite.all():
        return Encoding(records, failures, global_, patches)
    places = [place for place in range(len(records)) if place not in failures]
    for place, good in zip(places, finite.tolist(), strict=True):
        if not good:
            why = f"its features overflow in {backbone.dtype}: use float32, or other weights"
            failures[place] = InputError(f"{records[place].name}: {why}")
    return Encoding(records, failures, global_[finite], patches[finite.to(patches.device)])
