"""Decoding and transforming many images at once, in order, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.data.decoders import Decoders, Work, decode
from pbprompt.data.processors import available_cpus
from pbprompt.errors import InputError

PART = 16  # images that a decoding process is asked for at once

Result = tuple[int, Tensor | InputError]


def load_images(
    paths: Sequence[str | Path],
    transform: Callable[..., Tensor],
    *,
    keys: Sequence[str] | None = None,
    workers: int | None = None,
    draft: int | None = None,
    decoders: Decoders | None = None,
) -> Iterator[Result]:
    """Yield (index, tensor) in order; in place of an image that cannot be read, (index, its InputError).

    Calls `transform(image)`, or `transform(image, key=keys[index])` where keys are given, as views need.
    `draft` is for `open_image`. Workers are threads: Pillow decodes and resizes outside the interpreter lock,
    so a few keep as many cores busy without copying tensors between processes. For many cores give
    `decoders`, one process per worker; the transform must be picklable then. At most four images per worker
    are in memory at once, with decoders four parts of `PART`.
    """
    workers = workers or (decoders.count if decoders else available_cpus())
    run, size = (decode, 1) if decoders is None else (decoders.decode, PART)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="load-images")
    pending: deque[Future[list[Tensor | InputError]]] = deque()
    done = count()
    try:
        for start in range(0, len(paths), size):
            part = slice(start, start + size)
            work = Work(transform, paths[part], None if keys is None else keys[part], draft)
            pending.append(pool.submit(run, work))
            if len(pending) >= 4 * workers:
                yield from ((next(done), result) for result in pending.popleft().result())
        while pending:
            yield from ((next(done), result) for result in pending.popleft().result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def unreadable(paths: Sequence[str | Path]) -> Iterator[InputError | None]:
    """For each file in order, why it cannot be decoded, or None where it can."""
    for _, result in load_images(paths, lambda image: torch.empty(0)):
        yield result if isinstance(result, InputError) else None
