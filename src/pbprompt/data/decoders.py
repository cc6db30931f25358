"""Processes that decode images beside a GPU: beyond a handful, threads decode little faster, and it waits."""

import atexit
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.data.images import open_image
from pbprompt.data.processors import available_cpus
from pbprompt.data.workers import AVAILABLE, Workers
from pbprompt.errors import InputError

MANY_PROCESSORS, MOST_PROCESSES = 8, 16  # each process takes some hundred megabytes
MANY_IMAGES = 10_000


class Work(NamedTuple):
    """Some files, and what makes pixels of each: `pixels(image)`, or `pixels(image, key=…)` with keys."""

    pixels: Callable[..., Tensor]
    paths: Sequence[str | Path]
    keys: Sequence[str] | None
    draft: int | None


def decode(work: Work) -> list[Tensor | InputError]:
    """The pixels of each file, or why it cannot be read."""
    decoded: list[Tensor | InputError] = []
    for place, path in enumerate(work.paths):
        try:
            image = open_image(path, draft=work.draft)
        except InputError as error:
            decoded.append(error)
            continue
        decoded.append(work.pixels(image) if work.keys is None else work.pixels(image, key=work.keys[place]))
    return decoded


def _decode_to_arrays(work: Work) -> list[NDArray[np.uint8] | InputError]:
    """Pixels travel as arrays: torch would send a file handle for each."""
    return [one if isinstance(one, InputError) else one.numpy() for one in decode(work)]


class Decoders(Workers):
    """Processes for `decode`."""

    def decode(self, work: Work) -> list[Tensor | InputError]:
        """`decode` elsewhere; here where the process has died."""
        try:
            answers = self.ask(_decode_to_arrays, work)
        except EOFError:
            return decode(work)
        return [one if isinstance(one, InputError) else torch.from_numpy(one) for one in answers]


def worthwhile_decoders(images: int) -> Decoders | None:
    """A process a processor, where there are many of them, once so many images pay for starting them."""
    processors = available_cpus()
    if AVAILABLE and processors >= MANY_PROCESSORS and images >= MANY_IMAGES:
        return shared_decoders(min(processors, MOST_PROCESSES))
    return None


@cache
def shared_decoders(count: int) -> Decoders:
    """Started once, since that takes seconds, and kept until the program ends."""
    decoders = Decoders(count)
    atexit.register(decoders.close)
    return decoders
