"""Processes that run functions for a caller who may end them, and how many processors there are for them.

Threads share one interpreter's lock and memory, and nobody can stop them. These are processes of their own:
each runs this file, which imports little and nothing of the caller's program, hears no Ctrl-C, which is the
caller's to handle, and ends with its caller, whatever it does.
"""

import importlib
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from typing import ParamSpec, TypeVar

from pbprompt.errors import warn_in_sentences

BUSY = 4  # times the processor time that an answer may take, by the clock
AVAILABLE = os.name == "posix"  # a socket is handed to the child by its number


def available_cpus() -> int:
    """The processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Workers:
    """Up to `count` processes, started when needed: call `ask` from as many threads.

    `memory` bounds the bytes that each allocates, `seconds` the processor time that each takes for an answer:
    a busy machine makes nobody late, unless it takes `BUSY` times as long by the clock. For that time to be
    that of the work alone, each first imports the module `prepare`. `handles` are open files that each has
    too, under the same numbers; `environments` what each finds in its environment.
    """

    def __init__(
        self,
        count: int,
        memory: int = 0,
        seconds: float | None = None,
        *,
        prepare: str = __name__,
        handles: Sequence[int] = (),
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.count, self._seconds = count, seconds
        self._idle: LifoQueue[_Worker] = LifoQueue()  # those that run already come first
        for environment in environments or [{"OMP_NUM_THREADS": "1"}] * count:
            self._idle.put(_Worker((str(memory), prepare), handles, environment))
        self._running: set[_Worker] = set()
        self._lock, self._closed = threading.Lock(), False

    def ask(
        self, function: Callable[Arguments, Result], *given: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """What a module's function gives or raises.

        TimeoutError: it was late; EOFError: its process died, with that exit code, or was stopped.
        """
        if not AVAILABLE:
            return function(*given, **named)
        worker = self._idle.get()
        try:
            self._start(worker)
            answer = worker.ask((function, given, named), self._seconds)
        except BaseException as error:  # Ctrl-C too: its answer would be taken for that of the next question
            code = self._end(worker)
            if isinstance(error, OSError | EOFError) and not isinstance(error, TimeoutError):
                raise EOFError(code) from None
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

    def _start(self, worker: "_Worker") -> None:
        with self._lock:
            if self._closed:
                raise EOFError
            if worker not in self._running:
                worker.start()
                self._running.add(worker)

    def _end(self, worker: "_Worker") -> int:
        if worker not in self._running:
            return 0
        self._running.discard(worker)
        worker.process.kill()
        return worker.process.wait()


class _Worker:
    """One process at a time, and the line to it."""

    def __init__(
        self, options: tuple[str, ...], handles: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        self._options, self._handles, self._environment = options, handles, environment

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        # the caller's own paths, so that the child finds the same package
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "pbprompt.vision.images.workers", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*command, *self._options],
                pass_fds=[theirs.fileno(), *self._handles],
                stdin=subprocess.DEVNULL,
                env={**environment, **self._environment},
                process_group=0,  # where no Ctrl-C arrives
            )
        self._line = Connection(ours.detach())
        self._ready = False

    def ask(self, work: object, seconds: float | None) -> object:
        if not self._ready:
            self._ready = self._line.recv()
        self._line.send(work)
        began, before, left = time.monotonic(), _processor_seconds(self.process.pid), seconds
        while not self._line.poll(left):  # for ever where no time is given
            assert seconds is not None
            if _is_stopped(self.process.pid):
                raise EOFError
            waited = time.monotonic() - began
            after = _processor_seconds(self.process.pid)
            worked = waited if before is None or after is None else after - before
            left = seconds - worked
            if left <= seconds / 100 or waited > BUSY * seconds:
                raise TimeoutError
        return self._line.recv()


def _processor_seconds(process: int) -> float | None:
    """What a process has used so far; None where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_stopped(process: int) -> bool:
    """Whether a child waits for a SIGCONT, whatever it was asked."""
    only_look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    return hasattr(os, "waitid") and os.waitid(os.P_PID, process, only_look) is not None


def _serve(line: Connection) -> None:
    """Answer until the line ends."""
    line.send(True)
    while True:
        try:
            function, given, named = line.recv()
        except EOFError:
            return
        except Exception as error:  # a function that cannot be imported here
            line.send(error)
            continue
        try:
            answer = function(*given, **named)
        except Exception as error:
            answer = error
        try:
            line.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            line.send(error)


def _leave_with(line: Connection) -> None:
    """End when the caller's end of the line closes, in the midst of work too."""
    closed = select.poll()
    closed.register(line.fileno(), 0)  # a hang-up is told unasked
    closed.poll()
    os._exit(1)


if __name__ == "__main__":
    line = Connection(int(sys.argv[1]))
    threading.Thread(target=_leave_with, args=(line,), daemon=True).start()
    if limit := int(sys.argv[2]):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    warn_in_sentences()
    importlib.import_module(sys.argv[3])
    _serve(line)
