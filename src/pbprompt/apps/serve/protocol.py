"""Connections: uvicorn's, with an end to those that send or read too slowly, and room for so many."""

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pbprompt.apps.serve.fairness import client_of

CONNECTIONS = 512  # at once, half of them one client's at most; a process may often open 1,024 files
HEADER_SECONDS = 10.0  # from a connection, or from the last answer, to the whole header of a request
REQUEST_SECONDS = 120.0  # from then on: to send the rest, to be answered and to read the answer
LOGGED, LOGGED_SECONDS = 10, 60.0  # warnings of one kind in so much time
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b'connection: close\r\n\r\n{"error": "too many connections: try again"}'
)


class GuardedProtocol(H11Protocol):
    """One connection. uvicorn itself waits without end for a header."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.from_client = client_of(self.client)
        own = sum(getattr(other, "from_client", None) == self.from_client for other in self.connections)
        if own - 1 > CONNECTIONS - len(self.connections):  # as `Shares` has it
            transport.write(FULL)
            transport.close()
        else:
            self._watch(HEADER_SECONDS, None)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        self._watch(HEADER_SECONDS, answered)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self, seconds: float, last: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._late, last)

    def _late(self, last: Any) -> None:
        """No request has begun since the last, or the one that has takes too long."""
        if self.cycle is last:
            self.transport.abort()
        else:
            self._watch(REQUEST_SECONDS, self.cycle)


class Seldom(logging.Filter):
    """Lets few warnings of one kind pass: clients cause them, and could fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind, now = str(record.msg), time.monotonic()
        if now - self._since.get(kind, -LOGGED_SECONDS) >= LOGGED_SECONDS:
            self._since[kind], self._count[kind] = now, 0
        self._count[kind] += 1
        return self._count[kind] <= LOGGED


SELDOM = Seldom()
