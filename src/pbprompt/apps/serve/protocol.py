"""Connections: uvicorn's, with an end to those that send or read too slowly, room for so many, and turns.

It rests on some of uvicorn's insides: that `handle_events` asks `conn.next_event` until that needs data, and
that `flow` pauses and resumes reading. `tests/apps/serve/test_protocol.py` would see them change.
"""

import asyncio
import logging
import time
from typing import Any
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from pbprompt.apps.serve.fairness import Rota, client_of

CONNECTIONS = 512  # at once, half of them one client's at most; a process may often open 1,024 files
HEADER_SECONDS = 10.0  # from a connection, or from the last answer, to the whole header of a request
REQUEST_SECONDS = 120.0  # from then on: to send the rest, to be answered and to read the answer
EVENTS, TURN_SECONDS = 64, 0.002  # of one connection at a time, and of all until the loop does other work
PIECES, PIECE_BYTES = 4096, 512  # of a body: so many pieces are any size, more are so large on the average
HEADER, LINES = 256 << 10, 100  # bytes and lines of a header or trailer; lines are what costs
STEP = 1 << 10  # bytes that are handed to h11 at once
LOGGED, LOGGED_SECONDS = 10, 60.0  # warnings of one kind in so much time
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b'connection: close\r\n\r\n{"error": "too many connections: try again"}'
)


class Pump:
    """Goes through what connections have received, a little at a time, while clients take turns.

    h11 takes some 30 µs for a chunk, however small: what fills a socket's buffer would hold everybody up for
    half a second. No two requests begin in one turn: each takes longer than that turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._called = loop, False
        self._waiting: Rota[GuardedProtocol] = Rota()

    def add(self, line: "GuardedProtocol") -> None:
        """Let the connection go on when its client's turn has come."""
        self._waiting.add(line.from_client, None, line)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        try:
            while self._waiting:
                if self._waiting.pop().go_on() or time.monotonic() >= until:
                    break
        finally:  # a connection that fails holds up no other
            self._called = bool(self._waiting)
            if self._called:
                self._loop.call_soon(self._turn)


_pumps: WeakKeyDictionary[asyncio.AbstractEventLoop, Pump] = WeakKeyDictionary()


class Metered(h11.Connection):
    """Gives so many events, then asks for data until there is room for more.

    Refuses a body in crumbs, and very many lines of a header or trailer: h11 goes through all of one once its
    end is there, so that it is handed a little at a time, but for what is known to be a body's.
    """

    room = 0
    _lines = 0  # that were handed on since the last event
    _pieces = _bytes = 0  # of a body that came
    _left = 0  # bytes of it that its header says are still to come

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._received = bytearray()

    def receive_data(self, data: bytes) -> None:
        self._received += data

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if not self.room:
            return h11.NEED_DATA
        self.room -= 1
        while (event := super().next_event()) is h11.NEED_DATA and self._received:
            self._check_lines(self._lines)
            step = max(STEP, self._left)
            some = bytes(self._received[:step])
            super().receive_data(some)
            self._lines += some.count(b"\n")
            del self._received[:step]
        if event is not h11.NEED_DATA:
            self._lines = 0
        if isinstance(event, h11.Request | h11.EndOfMessage):
            self._check_lines(len(event.headers))
            self.room = max(0, self.room - len(event.headers))
            self._pieces = self._bytes = self._left = 0
        if isinstance(event, h11.Request):
            headers = dict(event.headers)
            self._left = 0 if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))
        elif isinstance(event, h11.Data):
            self._pieces, self._bytes = self._pieces + 1, self._bytes + len(event.data)
            self._left -= len(event.data)
            ours = self._bytes // STEP  # where a step ended in the midst of one
            if self._pieces > PIECES + ours + self._bytes // PIECE_BYTES:
                raise h11.RemoteProtocolError("the body comes in too small pieces")
        return event

    def _check_lines(self, count: int) -> None:
        if count > LINES:
            raise h11.RemoteProtocolError("too many headers", error_status_hint=431)


class _Flow(FlowControl):
    """Reads no more while what was read waits for its turn."""

    waits = False

    def resume_reading(self) -> None:
        if not self.waits:
            super().resume_reading()


class GuardedProtocol(H11Protocol):
    """One connection. uvicorn itself waits without end for a header, and works on one until it is done."""

    _timer: asyncio.TimerHandle | None = None
    flow: _Flow
    conn: Metered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.from_client, self.flow = client_of(self.client), _Flow(transport)
        self.conn = Metered(HEADER)
        self._pump = _pumps.setdefault(self.loop, Pump(self.loop))
        own = sum(getattr(other, "from_client", None) == self.from_client for other in self.connections)
        if own - 1 > CONNECTIONS - len(self.connections):  # as `Shares` has it
            self.connections.discard(self)  # or many that are refused at once would fill the room
            transport.write(FULL)
            transport.close()
        else:
            self._watch(HEADER_SECONDS, None)

    def handle_events(self) -> None:
        """What was received, or is still to be gone through, waits for its turn."""
        if not self.flow.waits:
            self.flow.pause_reading()
            self.flow.waits = True
            self._pump.add(self)

    def go_on(self) -> bool:
        """Go through some of it; whether a request has begun."""
        self.flow.waits = False
        if self.transport.is_closing():
            return False
        self.flow.resume_reading()
        self.conn.room, before = EVENTS, self.cycle
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # it is past an answer that would say what is wrong
            self.transport.abort()
        if not self.conn.room:
            self.handle_events()
        return self.cycle is not before

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
        self._begun: dict[str, tuple[float, int]] = {}  # of each kind since when, and how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind, now = str(record.msg), time.monotonic()
        since, count = self._begun.get(kind, (now, 0))
        if now - since >= LOGGED_SECONDS:
            since, count = now, 0
        self._begun[kind] = since, count + 1
        return count < LOGGED


SELDOM = Seldom()
