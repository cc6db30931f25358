"""Connections that send nothing, or too much, against a real server."""

import asyncio
import logging
import socket
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from pbprompt.apps.serve import protocol
from pbprompt.apps.serve.app import server_config
from pbprompt.apps.serve.fairness import client_of
from pbprompt.apps.serve.protocol import Seldom


@pytest.fixture
def connect(running):
    opened = []

    def open_one() -> socket.socket:
        parts = urlsplit(running)
        opened.append(socket.create_connection((parts.hostname, parts.port)))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX"])
def test_a_header_that_never_ends_is_not_waited_for(connect, monkeypatch, begun):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    connection = connect()
    connection.sendall(begun)
    assert closed(connection)


def test_nor_is_the_next_on_a_connection_that_was_answered(connect, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 3600.0)
    connection = connect()
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal")
    while connection.recv(4096):
        pass  # the rest of the answers, and then the end


def test_a_request_that_never_ends_is_cut_off(connect, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.1)
    connection = connect()
    connection.sendall(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    assert closed(connection)


def test_there_is_room_for_so_many_connections(connect, monkeypatch):
    """One client leaves as many as it has."""
    monkeypatch.setattr(protocol, "CONNECTIONS", 3)
    first, _ = connect(), connect()
    third = connect()
    assert third.recv(4096).startswith(b"HTTP/1.1 503") and closed(third)
    first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert first.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_kind_of_warning_is_logged_a_few_times_only(monkeypatch):
    def record(message: str, level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("x", level, "", 0, message, (), None)

    seldom = Seldom()
    assert sum(seldom.filter(record("bad")) for _ in range(50)) == protocol.LOGGED
    assert seldom.filter(record("other")) and seldom.filter(record("bad", logging.INFO))
    monkeypatch.setattr(protocol, "LOGGED_SECONDS", 0.0)
    assert seldom.filter(record("bad"))


CHUNKED = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """A connection's transport, and what was written to it."""

    def __init__(self, address: str) -> None:
        self.address, self.written, self.ended, self.paused = (address, 1), b"", False, False

    def get_extra_info(self, name: str) -> object:
        return {"peername": self.address, "sockname": ("127.0.0.1", 2)}.get(name)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = True

    abort = close

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def _read_all(scope, receive, send) -> None:
    """An app that reads whatever comes, and answers."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"read"})


def lines(*addresses: str) -> list[tuple[protocol.GuardedProtocol, Wire]]:
    """Connections to one server, made within its loop."""
    config, state = uvicorn.Config(_read_all, http=protocol.GuardedProtocol), ServerState()
    config.load()
    made = []
    for address in addresses:
        line, wire = protocol.GuardedProtocol(config, state, {}), Wire(address)
        line.connection_made(wire)
        made.append((line, wire))
    return made


def test_crumbs_of_many_connections_hold_up_another_client_by_a_turn_each(monkeypatch):
    """Of a client's connections that send chunks of a byte, one is gone on with before another's request."""
    monkeypatch.setattr(protocol, "TURN_SECONDS", 0.0)  # one connection a turn
    monkeypatch.setattr(protocol, "PIECES", 10**9)

    async def run() -> tuple[bytes, int]:
        many = lines(*["10.0.0.2"] * 20, "10.0.0.1")
        *greedy, (line, wire) = many
        turns, go_on = [], protocol.GuardedProtocol.go_on
        monkeypatch.setattr(protocol.GuardedProtocol, "go_on", lambda self: turns.append(self) or go_on(self))
        for other, its_wire in greedy:
            other.data_received(CHUNKED + b"1\r\nx\r\n" * 1000)
            assert its_wire.paused
        line.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not wire.written:
            await asyncio.sleep(0)
        return wire.written, len(turns)

    written, turns = asyncio.run(run())
    assert written.startswith(b"HTTP/1.1 200") and turns < 10


def test_crumbs_of_a_single_connection_get_one_turn_in_each_round_of_the_loop(monkeypatch):
    """However much has come: what else the loop has to do goes on between any two."""
    monkeypatch.setattr(protocol, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(protocol, "PIECES", 10**9)

    async def run() -> list[int]:
        turns, turn = [0], protocol.Pump._turn

        def counted(self):
            turns[-1] += 1
            turn(self)

        monkeypatch.setattr(protocol.Pump, "_turn", counted)
        ((line, wire),) = lines("10.0.0.1")
        line.data_received(CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
        while not wire.written:
            await asyncio.sleep(0)
            turns.append(0)
        return turns

    turns = asyncio.run(run())
    assert max(turns) == 1 < sum(turns)


def test_a_body_in_crumbs_is_refused_and_one_in_pieces_is_read(monkeypatch):
    async def run(pieces: int, size: int) -> bytes:
        ((line, wire),) = lines("10.0.0.1")
        line.data_received(CHUNKED + b"%x\r\n%b\r\n" % (size, bytes(size)) * pieces + b"0\r\n\r\n")
        while not wire.written:
            await asyncio.sleep(0)
        return wire.written

    monkeypatch.setattr(protocol, "PIECES", 100)
    assert asyncio.run(run(101, 1)).startswith(b"HTTP/1.1 400")
    assert asyncio.run(run(100, 1)).startswith(b"HTTP/1.1 200")
    assert asyncio.run(run(1000, protocol.PIECE_BYTES)).startswith(b"HTTP/1.1 200")


def test_a_hundred_headers_are_read_and_no_more():
    async def run(count: int, size: int) -> bytes:
        ((line, wire),) = lines("10.0.0.1")
        line.data_received(
            b"GET / HTTP/1.1\r\nHost: localhost\r\n"
            + (b"a:" + bytes(size).replace(b"\0", b"x") + b"\r\n") * count
            + b"\r\n"
        )
        while not wire.written:
            await asyncio.sleep(0)
        return wire.written

    most = protocol.LINES - 1  # one names the host
    assert asyncio.run(run(most, 300)).startswith(b"HTTP/1.1 200")
    assert asyncio.run(run(most + 1, 1)).startswith(b"HTTP/1.1 400")
    assert asyncio.run(run(most, 3000)).startswith(b"HTTP/1.1 400")  # of over 256 KiB


def test_requests_one_behind_the_other_take_turns_with_other_clients(monkeypatch):
    monkeypatch.setattr(protocol, "TURN_SECONDS", 0.0)
    ask = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def run() -> int:
        *greedy, (line, wire) = lines(*["10.0.0.2"] * 20, "10.0.0.1")
        for other, _ in greedy:
            other.data_received(ask * 100)
        line.data_received(ask)
        while not wire.written:
            await asyncio.sleep(0)
        return sum(its_wire.written.count(b"200 OK") for _, its_wire in greedy)

    assert asyncio.run(run()) < 20


def test_a_body_without_the_key_is_not_read(serve_at, model):
    parts = urlsplit(serve_at(model, api_key="k"))
    for length in (b"Transfer-Encoding: chunked", b"Content-Length: 60000000"):
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
            answer = b""
            while more := connection.recv(4096):  # not one byte of the body was sent
                answer += more
        assert answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer.lower()


@pytest.mark.parametrize(("proxy", "seen"), [(None, "127.0.0.1"), ("127.0.0.1", "10.0.0.7")])
def test_who_passes_requests_on_is_believed_only_where_that_was_told(proxy, seen):
    clients = []

    async def app(scope, receive, send) -> None:
        clients.append(client_of(scope["client"]))

    config = server_config(app, "127.0.0.1", 0, proxy)
    config.lifespan = "off"
    config.load()
    headers = [(b"x-forwarded-for", b"10.0.0.7")]
    scope = {"type": "http", "client": ("127.0.0.1", 5), "scheme": "http", "headers": headers}
    asyncio.run(config.loaded_app(scope, None, None))
    assert clients == [seen]
