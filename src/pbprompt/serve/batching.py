"""A bounded queue before the model: images of many requests go through the tower together."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

from pbprompt.serve.limits import Refused, too_busy

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """One worker thread that gathers up to `batch` items, or what came within `gather_seconds`.

    `run` maps a list of items to a list of results. At most `capacity` items are anywhere between `reserve`
    and the end of its block; whoever comes then is refused at once instead of waiting in an endless line.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        capacity: int,
        batch: int,
        gather_seconds: float,
    ) -> None:
        self.reserved = 0
        self._run, self._capacity = run, capacity
        self._batch, self._gather_seconds = batch, gather_seconds
        self._waiting: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer what waits, then stop."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Room for `count` items, counted from here on (so that decoding them counts too)."""
        if self.reserved + count > self._capacity:
            raise too_busy(f"{self.reserved} images wait already")
        self.reserved += count
        try:
            yield
        finally:
            self.reserved -= count

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """The results of items for which there is room, in order."""
        if self._closed:
            raise Refused(503, "the server is shutting down", retry_after=5)
        futures: list[Future[Result]] = [Future() for _ in items]
        for pair in zip(items, futures, strict=True):
            self._waiting.put(pair)
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    def _work(self) -> None:
        going_on = True
        while going_on and (first := self._waiting.get()) is not None:
            pairs, until = [first], time.monotonic() + self._gather_seconds
            while len(pairs) < self._batch:
                try:
                    another = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if another is None:
                    going_on = False
                    break
                pairs.append(another)
            self._answer(pairs)

    def _answer(self, pairs: list[tuple[Item, Future[Result]]]) -> None:
        # A request that gave up has cancelled its futures: no work for nobody.
        wanted = [(item, future) for item, future in pairs if future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            results = self._run([item for item, _ in wanted])
        except Exception as error:  # whatever it is, it belongs to those who wait, not to this thread
            for _, future in wanted:
                future.set_exception(error)
            return
        for (_, future), result in zip(wanted, results, strict=True):
            future.set_result(result)
