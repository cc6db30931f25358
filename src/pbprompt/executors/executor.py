"""What a sweep asks of the engine that spreads it: take jobs, tell which have ended, stop."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, eq=False)
class Job:
    """A call to make elsewhere: an importable function and arguments that can be pickled.

    Where there is a choice, the lowest `number` goes first.
    """

    id: str
    number: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Ended:
    """What became of a job: its value, or the text of the error that ended it."""

    job: Job
    value: Any = None
    error: str = ""


def ended(job: Job, result: Callable[[], Any], lost: type[Exception]) -> Ended:
    """The end of a job that was an `attempt` elsewhere: its `result` raises `lost` where its worker died."""
    try:
        return Ended(job, *result())
    except lost as error:
        return Ended(job, error=f"{type(error).__name__}: {error}")


class Executor(Protocol):
    """Runs jobs. A job may be given again after it ended, and then starts in a fresh or healthy worker."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs on; returns at once."""

    def wait(self, timeout: float) -> list[Ended]:
        """Jobs that ended since the last call; waits up to `timeout` seconds for the first."""

    def running(self) -> int:
        """How many jobs are under way, as far as is known."""

    def close(self) -> None:
        """Stop every worker, finished or not."""


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """(value, "") or (None, traceback): errors travel as text, since not every exception can be pickled."""
    try:
        return function(*arguments), ""
    except Exception:
        return None, traceback.format_exc()
