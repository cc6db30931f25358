"""Epochs made one ahead: while one trains, a thread makes the next."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Made = TypeVar("Made")


def one_ahead(make: Callable[[int], Made], count: int) -> Callable[[int], Made]:
    """`make` of 0 to count − 1, where asking for one starts the next in the background.

    What `make` raises comes when its result is asked for.
    """
    ready: dict[int, Future[Made]] = {}

    def start(index: int) -> None:
        ready[index] = Future()
        # a daemon: Ctrl-C need not wait for an epoch that nobody will train on
        threading.Thread(target=_fulfil, args=(ready[index], make, index), daemon=True).start()

    def get(index: int) -> Made:
        if index not in ready:
            start(index)
        made = ready.pop(index).result()
        if index + 1 < count:
            start(index + 1)
        return made

    return get


def _fulfil(promise: Future[Made], make: Callable[[int], Made], index: int) -> None:
    try:
        promise.set_result(make(index))
    except BaseException as error:
        promise.set_exception(error)
