"""Processes that decode images beside a GPU.

Threads of one interpreter share its lock and its memory map: beyond a handful they decode little faster, and
the GPU waits. These are processes of their own. Each runs this file, imports nothing of the caller's program,
ignores Ctrl-C, which is the caller's to handle, and ends with its caller.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.data.images import open_image
from pbprompt.data.processors import available_cpus
from pbprompt.errors import InputError

AVAILABLE = os.name == "posix"  # a socket is handed to the child by its number
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


class Decoders:
    """So many processes. `decode` takes one that is idle: call it from as many threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle: SimpleQueue[_Decoder] = SimpleQueue()
        for _ in range(count):
            self._idle.put(_Decoder())

    def decode(self, work: Work) -> list[Tensor | InputError]:
        """`decode` elsewhere; here where the process has died."""
        decoder = self._idle.get()
        try:
            return decoder.ask(work)
        except (EOFError, OSError):
            return decode(work)
        finally:
            self._idle.put(decoder)

    def close(self) -> None:
        for _ in range(self.count):
            self._idle.get().close()


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


class _Decoder:
    """One process, and the line to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # the caller's own paths, so that the child finds the same package
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pbprompt.data.decoders", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment | {"OMP_NUM_THREADS": "1"},
            )
        self._line = Connection(ours.detach())

    def ask(self, work: Work) -> list[Tensor | InputError]:
        self._line.send(work)
        answers: list[NDArray[np.uint8] | InputError] = self._line.recv()
        return [one if isinstance(one, InputError) else torch.from_numpy(one) for one in answers]

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def serve(line: Connection) -> None:
    """Answer until the line ends. Pixels travel as arrays: torch would send a file handle for each."""
    while True:
        try:
            work: Work = line.recv()
        except EOFError:
            return
        line.send([one if isinstance(one, InputError) else one.numpy() for one in decode(work)])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
