"""Processes that run functions for a caller who may end them, and how many processors there are for them.

Threads share one interpreter's lock and memory, and nobody can stop them. These are processes of their own:
each runs this file, which imports little and nothing of the caller's program, ignores Ctrl-C, which is the
caller's to handle, and ends with its caller.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from queue import LifoQueue
from typing import TypeVar

from pbprompt.errors import warn_in_sentences

AVAILABLE = os.name == "posix"  # a socket is handed to the child by its number


def available_cpus() -> int:
    """The processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


Result = TypeVar("Result")


class Workers:
    """Up to `count` processes, started when needed: call `ask` from as many threads.

    `memory` bounds the bytes that each allocates, `seconds` the time that each takes for an answer; for that
    time to be that of the work alone, each first imports the module `prepare`. `handles` are open files that
    each has too, under the same numbers.
    """

    def __init__(
        self,
        count: int,
        *,
        memory: int = 0,
        seconds: float | None = None,
        prepare: str = __name__,
        handles: Sequence[int] = (),
    ) -> None:
        self.count = count
        self._start_options, self._handles, self._seconds = (str(memory), prepare), handles, seconds
        self._idle: LifoQueue[_Worker | None] = LifoQueue()  # those that run already come first
        for _ in range(count):
            self._idle.put(None)
        self._running: set[_Worker] = set()
        self._lock, self._closed = threading.Lock(), False

    def ask(self, function: Callable[..., Result], *given: object) -> Result:
        """What a module's function gives or raises. TimeoutError: it was late; EOFError: its process died."""
        if not AVAILABLE:
            return function(*given)
        worker = self._idle.get()
        try:
            worker = worker or self._start()
            answer = worker.ask((function, given), self._seconds)
        except BaseException as error:  # Ctrl-C too: its answer would be taken for that of the next question
            self._end(worker)
            worker = None
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise EOFError from None
            raise
        finally:
            self._idle.put(worker)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    def close(self) -> None:
        """End all, whatever they do."""
        with self._lock:
            self._closed = True
        for worker in list(self._running):
            self._end(worker)

    def _start(self) -> "_Worker":
        with self._lock:
            if self._closed:
                raise EOFError
            worker = _Worker(self._start_options, self._handles)
            self._running.add(worker)
        return worker

    def _end(self, worker: "_Worker | None") -> None:
        if worker is not None:
            self._running.discard(worker)
            worker.process.kill()
            worker.process.wait()


class _Worker:
    """One process, and the line to it."""

    def __init__(self, options: tuple[str, ...], handles: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        # the caller's own paths, so that the child finds the same package
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pbprompt.data.workers", str(theirs.fileno()), *options],
                pass_fds=[theirs.fileno(), *handles],
                stdin=subprocess.DEVNULL,
                env=environment | {"OMP_NUM_THREADS": "1"},
            )
        self._line = Connection(ours.detach())
        self._ready = False

    def ask(self, work: object, seconds: float | None) -> object:
        if not self._ready:
            self._ready = self._line.recv()
        self._line.send(work)
        if not self._line.poll(seconds):
            raise TimeoutError
        return self._line.recv()


def _serve(line: Connection) -> None:
    """Answer until the line ends."""
    line.send(True)
    while True:
        try:
            function, given = line.recv()
        except EOFError:
            return
        try:
            answer = function(*given)
        except Exception as error:
            answer = error
        line.send(answer)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if limit := int(sys.argv[2]):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    warn_in_sentences()
    importlib.import_module(sys.argv[3])
    _serve(Connection(int(sys.argv[1])))
