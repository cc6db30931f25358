"""A bar on stderr for work that takes longer than a second."""

import time
from types import TracebackType

import rich.progress as bars
from rich.console import Console

PATIENCE_SECONDS = 1.0


class Progress:
    """Counts images; shows the bar, the rate and the time left once a second has passed."""

    def __init__(self, what: str, *, shown: bool) -> None:
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[rate]:.0f} images/s"),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self._task = self._bars.add_task(what, total=0, rate=0.0)
        self._total = self._done = 0
        self._started = time.perf_counter()
        self._visible = False

    def expect(self, count: int) -> None:
        """More images are to come."""
        self._total += count
        self._bars.update(self._task, total=self._total)

    def advance(self, count: int) -> None:
        self._done += count
        seconds = time.perf_counter() - self._started
        if not self._visible and seconds > PATIENCE_SECONDS:
            self._bars.start()
            self._visible = True
        self._bars.update(self._task, completed=self._done, rate=self._done / max(seconds, 1e-9))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._visible:
            self._bars.stop()
