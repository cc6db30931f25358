"""Decoding and transforming many images at once, in order, in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from pbprompt.data.images import open_image
from pbprompt.errors import InputError

Result = tuple[int, Tensor | InputError]


def available_cpus() -> int:
    """The processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def load_images(
    paths: Sequence[str | Path],
    transform: Callable[..., Tensor],
    *,
    keys: Sequence[str] | None = None,
    workers: int | None = None,
    draft: int | None = None,
) -> Iterator[Result]:
    """Yield (index, tensor) in order; in place of an image that cannot be read, (index, its InputError).

    Calls `transform(image)`, or `transform(image, key=keys[index])` where keys are given, as views need.
    `draft` is for `open_image`. At most four images a worker are in memory at once. Workers are threads:
    Pillow decodes and resizes outside the interpreter lock, so threads keep the cores busy without copying
    tensors between processes.
    """
    workers = workers or available_cpus()

    def load(index: int) -> Result:
        try:
            image = open_image(paths[index], draft=draft)
        except InputError as error:
            return index, error
        return index, transform(image) if keys is None else transform(image, key=keys[index])

    pool = ThreadPoolExecutor(workers, thread_name_prefix="load-images")
    pending: deque[Future[Result]] = deque()
    try:
        for index in range(len(paths)):
            pending.append(pool.submit(load, index))
            if len(pending) >= 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def unreadable(paths: Sequence[str | Path]) -> Iterator[InputError | None]:
    """For each file in order, why it cannot be decoded, or None where it can."""
    for _, result in load_images(paths, lambda image: torch.empty(0)):
        yield result if isinstance(result, InputError) else None
