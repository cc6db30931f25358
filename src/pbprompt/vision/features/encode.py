"""The one encoder: records through the frozen image tower. While it runs on some, others are decoded.

    records ──▶ read and decoded (`decoding.py`) ──▶ batches through the tower ──▶ features, in order

Each arrow holds so many images and no more: where the taker of the features waits, so does the source.
`FeatureCache` wraps it with a cache.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pbprompt.errors import InputError, NoNumberError
from pbprompt.vision.images.crops import Cropper, Hashed
from pbprompt.vision.images.decoding import Decoder, Square
from pbprompt.vision.images.stream import Record
from pbprompt.vision.images.transforms import normalise
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.backbone import Backbone, Encoded

MOST_DECODERS = 32  # each takes some thirty megabytes, and more while it has a large image
THREADS = 2  # of each tower on a CPU: on two cores a small one is a quarter faster than with one thread
QUEUED = 2  # batches that a GPU has been given: while it runs one, the next is there already

Mark = TypeVar("Mark")


class Encoding(NamedTuple):
    """A batch: its records, and the features of those that could be read, in their order, not normalised."""

    records: Sequence[Record]
    failures: dict[int, InputError]  # by place among the records
    global_: Float[Tensor, "n d"]  # in this machine's memory
    patches: Float[Tensor, "n m e"]  # half precision, on the tower's device, where most end: they are large

    @property
    def encoded(self) -> Encoded:
        return Encoded(self.global_, self.patches)


def default_batch(device: torch.device) -> int:
    """Large on a GPU. On a CPU few: their activations stay in its caches."""
    return 4 if device.type == "cpu" else 64


def decoder_for(backbone: Backbone) -> Decoder:
    """As many processes as feed the tower; on a CPU that takes most of the processors itself."""
    processors = available_cpus()
    on_cpu = backbone.device.type == "cpu"
    count = max(1, processors // 2) if on_cpu else min(processors, MOST_DECODERS)
    return Decoder(count, processes=True)


def encode_records(
    backbone: Backbone,
    batches: Iterable[tuple[Mark, Sequence[Record]]],
    decoder: Decoder,
    cropper: Cropper | None = None,
) -> Iterator[tuple[Mark, Encoding]]:
    """The features of each batch, with the mark that it came with, in order; `cropper`: else the
    test transform's.

    Batches are the caller's, so that the same ones give the same bits, wherever a stream is gone on with.

    On a CPU there is a tower for every processor, on batches of its own: while one waits, others go on. Each
    has `THREADS`, as half a batch fits a processor's caches.
    """
    threads, towers = torch.get_num_threads(), _towers(backbone)
    ahead = towers if backbone.device.type == "cpu" else QUEUED  # given before the first is waited for
    each = min(THREADS, threads) if towers > 1 else threads
    pool = ThreadPoolExecutor(towers, "tower", initializer=torch.set_num_threads, initargs=(each,))
    pending: deque[tuple[Mark, Future[_Begun]]] = deque()
    decoded = decoder.decoded(batches, cropper or backbone.preprocess.cropper)
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


def share_of_batch(backbone: Backbone, batch: int, images: int) -> int:
    """A batch that leaves none of a CPU's processors without images, where there are few."""
    return max(1, min(batch, -(-images // _towers(backbone))))


def _towers(backbone: Backbone) -> int:
    return torch.get_num_threads() if backbone.device.type == "cpu" else 1


class _Begun(NamedTuple):
    """A batch that a GPU may still be busy with: until `done`, none of the tensors is to be looked at."""

    encoding: Encoding
    finite: Bool[Tensor, " n"]
    done: torch.cuda.Event | None


@torch.inference_mode()
def _begin(backbone: Backbone, records: Sequence[Record], squares: Sequence[Square | InputError]) -> _Begun:
    """Give the tower a batch. A GPU is not waited for, so that the next batch can be made ready meanwhile."""
    failures = {place: one for place, one in enumerate(squares) if isinstance(one, InputError)}
    read = [one for one in squares if not isinstance(one, InputError)]
    if not read:
        rows = torch.empty(0, backbone.grid[0] * backbone.grid[1], backbone.patch_width, dtype=torch.float16)
        none = torch.empty(0, backbone.embed_dim)
        nothing = Encoding(records, failures, none, rows.to(backbone.device))
        return _Begun(nothing, none.isfinite().all(dim=1), None)
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
    return _Begun(Encoding(records, failures, global_, patches), finite, done)


@torch.inference_mode()
def _end(backbone: Backbone, begun: _Begun) -> Encoding:
    encoding, finite, done = begun
    if done is not None:
        done.synchronize()
    if finite.all():
        return encoding
    records, failures, global_, patches = encoding
    places = [place for place in range(len(records)) if place not in failures]
    for place, good in zip(places, finite.tolist(), strict=True):
        if not good:
            content = records[place].content
            name = content.path if isinstance(content, Hashed) else records[place].name
            why = f"its features overflow in {backbone.dtype}: use float32, or other weights"
            failures[place] = NoNumberError(f"{name}: {why}")
    return Encoding(records, failures, global_[finite], patches[finite.to(patches.device)])
