"""The queue before the model: images of many requests go through the tower together."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from pbprompt.apps.serve.fairness import Turns
from pbprompt.apps.serve.limits import Refused

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """One worker thread that gathers up to `batch` items, or what came within `gather_seconds`.

    No item is waited for but those `expected`: so many are there or on their way. `run` maps a list of items
    to a list of results. The line before it is as long as the next batch: whoever else waits does so for
    their turn.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        batch: int,
        gather_seconds: float,
        expected: Callable[[], int] | None = None,
    ) -> None:
        self._run, self._batch, self._gather_seconds = run, batch, gather_seconds
        self._expected = expected or (lambda: batch)
        self._turns = Turns(2 * batch)
        self._waiting: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer what waits, then stop."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    async def submit(self, items: Sequence[Item]) -> list[Result]:
        """The results of items, in order."""
        return list(await asyncio.gather(*map(self._one, items)))

    async def _one(self, item: Item) -> Result:
        async with self._turns.turn():
            if self._closed:
                raise Refused(503, "the server is shutting down", retry_after=5)
            result: Future[Result] = Future()
            self._waiting.put((item, result))
            return await asyncio.wrap_future(result)

    def _work(self) -> None:
        going_on = True
        while going_on and (first := self._waiting.get()) is not None:
            pairs, until = [first], time.monotonic() + self._gather_seconds
            while len(pairs) < min(self._batch, self._expected()):
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
