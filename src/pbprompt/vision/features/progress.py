"""What long work says on stderr: a bar where someone watches, and in a log a line every few seconds."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import rich.progress as bars
from rich.console import Console

PATIENCE_SECONDS = 1.0
LINE_SECONDS = 5.0


def watched(console: Console) -> bool:
    """Whether a bar is seen there as it moves."""
    return console.is_terminal or console.is_jupyter


def bar(console: Console, *more: bars.ProgressColumn, shown: bool) -> bars.Progress:
    """What is counted, how many of them, `more` and the time left; nothing where nobody watches."""
    counted = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()
    seen = shown and watched(console)
    last = bars.TimeRemainingColumn()
    return bars.Progress(*counted, *more, last, console=console, transient=True, disable=not seen)


class LogLines:
    """A line now and then for a log, in which a bar would not be seen; none in a terminal."""

    def __init__(self, console: Console, *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._shown, self._clock = console, shown and not watched(console), clock
        self._last = clock()

    def say(self, text: Callable[[], str]) -> None:
        if self._shown and self._clock() - self._last >= LINE_SECONDS:
            self._last = self._clock()
            self._console.print(text(), markup=False, highlight=False, soft_wrap=True)


class Progress(AbstractContextManager["Progress"]):
    """Counts images; shows the bar, the rate and the time left once a second has passed."""

    def __init__(self, what: str, *, shown: bool) -> None:
        console = Console(stderr=True)
        rate = bars.TextColumn("{task.fields[rate]:.0f} images/s")
        self._what, self._lines = what, LogLines(console, shown=shown)
        self._bars = bar(console, rate, shown=shown)
        self._task = self._bars.add_task(what, total=0, rate=0.0)
        self._total: int | None = 0
        self._done, self._started, self._visible = 0, time.perf_counter(), False

    def expect(self, count: int | None) -> None:
        """More images are to come; None: nobody knows how many."""
        self._total = None if count is None or self._total is None else self._total + count
        self._bars.update(self._task, total=self._total)

    def advance(self, count: int) -> None:
        self._done += count
        seconds = time.perf_counter() - self._started
        if not self._visible and seconds > PATIENCE_SECONDS:
            self._bars.start()
            self._visible = True
        rate = self._done / max(seconds, 1e-9)
        self._bars.update(self._task, completed=self._done, rate=rate)
        self._lines.say(lambda: self._line(rate))

    def _line(self, rate: float) -> str:
        if not self._total:
            return f"{self._what}: {self._done:,}, {rate:.0f} images/s"
        left = max(0, self._total - self._done) / max(rate, 1e-9)
        return (
            f"{self._what}: {self._done:,} of {self._total:,}, {rate:.0f} images/s, "
            f"{timedelta(seconds=round(left))} left"
        )

    def __exit__(self, *_: object) -> None:
        if self._visible:
            self._bars.stop()
