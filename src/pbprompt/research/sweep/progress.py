"""Where a sweep stands, on stderr: a table that renews itself, or a line per run where nobody watches."""

import time
from collections.abc import Callable
from datetime import timedelta

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text


class Progress:
    """Counts the runs of a sweep and estimates the time left from the pace so far.

    Ctrl-C may come between a run's record and our count of it, so what is then said is what `kept` counts.
    """

    def __init__(self, *, total: int, skipped: int, shown: bool, kept: Callable[[], int]) -> None:
        self._console = Console(stderr=True, quiet=not shown, markup=False, highlight=False, soft_wrap=True)
        self._total, self._skipped, self._kept = total, skipped, kept
        self._done = self._failed = self._running = 0
        self._last = ""
        self._started = time.monotonic()
        self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=2)

    def show(self, running: int) -> None:
        self._running = running

    def ended(self, label: str, *, failed: bool = False) -> None:
        self._done, self._failed = self._done + (not failed), self._failed + failed
        self._last = f"{label} failed" if failed else label
        if not self._console.is_terminal:
            ended = f"{self._done + self._failed}/{self._total}, {self._left()} left"
            self._console.print(f"{ended}: {self._last}")

    def _left(self) -> str:
        ended = self._done + self._failed
        if not ended:
            return "?"
        pace = (time.monotonic() - self._started) / ended
        return str(timedelta(seconds=round(pace * (self._total - ended))))

    def _table(self) -> Table:
        table = Table("done", "running", "failed", "skipped", "to go", "time left", "last", box=box.SIMPLE)
        to_go = self._total - self._done - self._failed - self._running
        counts = (self._done, self._running, self._failed, self._skipped, max(to_go, 0))
        table.add_row(*map(str, counts), self._left(), Text(self._last))
        return table

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._running = 0
        self._live.stop()
        if kind is KeyboardInterrupt:
            ended = self._kept() + self._failed
            self._console.print(f"stopped with {ended} of {self._total} runs: the same command goes on")
