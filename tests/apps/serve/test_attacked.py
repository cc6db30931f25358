"""One client attacks a real server while another asks: what is in between is counted, not timed."""

import http.client
import socket
import sys
from contextlib import suppress
from urllib.parse import urlsplit

import h11
import pytest

from pbprompt.apps.serve import middleware, protocol
from pbprompt.apps.serve.fairness import client_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is another client of Linux alone")

LINES, ASK = 20, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CRUMBS = {  # what each line sends first, and then so often
    "chunks of a byte": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 20_000),
    "requests in a row": (b"", ASK + b"\r\n", 4000),
}


@pytest.fixture
def greedy(running):
    """Connections of another client than the tests'."""
    opened = []

    def connect(count: int) -> list[socket.socket]:
        parts = urlsplit(running)
        for _ in range(count):
            line = socket.create_connection((parts.hostname, parts.port), source_address=("127.0.0.2", 0))
            line.setblocking(False)
            opened.append(line)
        return opened

    yield connect
    for line in opened:
        line.close()


def asked(url: str, **headers: str) -> int:
    """The status of a small request."""
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname, parts.port)
    line.request("GET", "/healthz", headers=headers)
    status = line.getresponse().status
    line.close()
    return status


@pytest.mark.parametrize("kind", CRUMBS)
def test_crumbs_without_end_hold_another_client_up_by_a_few_turns(running, greedy, monkeypatch, kind):
    monkeypatch.setattr(protocol, "TURN_SECONDS", 0.0)  # one connection a turn of the loop
    monkeypatch.setattr(protocol, "PIECES", 10**9)  # else they are refused
    turns, begun, ended = [], [], []

    go_on, received = protocol.GuardedProtocol.go_on, protocol.GuardedProtocol.data_received
    complete = protocol.GuardedProtocol.on_response_complete
    small = "127.0.0.1"

    def counted(self):
        turns.append(self.from_client)
        return go_on(self)

    def noted(self, data):
        if self.from_client == small:
            begun.append(len(turns))
        received(self, data)

    def told(self):
        if self.from_client == small:
            ended.append(len(turns))
        complete(self)

    monkeypatch.setattr(protocol.GuardedProtocol, "go_on", counted)
    monkeypatch.setattr(protocol.GuardedProtocol, "data_received", noted)
    monkeypatch.setattr(protocol.GuardedProtocol, "on_response_complete", told)
    first, crumb, times = CRUMBS[kind]
    lines = greedy(LINES)
    for line in lines:
        with pytest.raises(BlockingIOError):  # the server reads no more: its buffers are full
            line.sendall(first + crumb * times * 100)
    for _ in range(3):
        assert asked(running) == 200
    between = [end - start for start, end in zip(begun, ended, strict=False)]  # the last may still end
    assert "127.0.0.2" in turns and len(between) > 1 and max(between) < 3 * LINES, between


TINY = b"a:\r\n" * 50_000
LAST = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        ASK + TINY + b"\r\n",
        POST + LAST + TINY + b"\r\n",
        POST + b"Content-Length: 1\r\n\r\nx" + ASK + TINY + b"\r\n",
    ],
    ids=["header", "trailer", "header behind a body"],
)
def test_very_many_lines_of_a_header_or_trailer_are_not_gone_through(running, greedy, monkeypatch, sent):
    handed, hand = [], h11.Connection.receive_data
    monkeypatch.setattr(
        h11.Connection, "receive_data", lambda self, data: (handed.append(len(data)), hand(self, data))
    )
    (line,) = greedy(1)
    line.setblocking(True)
    answer = b""
    with suppress(ConnectionError):  # it closes, whatever is still sent
        line.sendall(sent)
        while said := line.recv(1 << 16):
            answer += said
    assert max(handed) <= protocol.STEP and sum(handed) < 10 * protocol.STEP
    assert b"HTTP/1.1 400" in answer or not answer
    assert asked(running) == 200


def test_two_requests_do_not_begin_in_one_turn(running, greedy, monkeypatch):
    """However quickly they are gone through, each costs what its answer takes."""
    monkeypatch.setattr(protocol, "TURN_SECONDS", 3600.0)
    begun, turn, go_on = [], protocol.Pump._turn, protocol.GuardedProtocol.go_on

    def gone_on(self):
        begun[-1] += (has := go_on(self))
        return has

    monkeypatch.setattr(protocol.Pump, "_turn", lambda self: (begun.append(0), turn(self)))
    monkeypatch.setattr(protocol.GuardedProtocol, "go_on", gone_on)
    for line in greedy(LINES):
        line.sendall((ASK + b"\r\n") * 100)
    assert asked(running) == 200
    assert sum(begun) > 1 and max(begun) == 1


def test_a_client_with_as_many_connections_as_it_gets_leaves_room(running, greedy, monkeypatch):
    monkeypatch.setattr(protocol, "CONNECTIONS", 8)
    greedy(20)
    assert asked(running) == 200


@pytest.mark.parametrize(("proxy", "clients"), [(None, 1), ("127.0.0.1", 40)])
def test_a_header_makes_no_clients_of_one_unless_a_proxy_was_named(
    serve_at, model, monkeypatch, proxy, clients
):
    seen = set()
    monkeypatch.setattr(middleware, "client_of", lambda address: seen.add(client_of(address)) or "x")
    url = serve_at(model, proxy=proxy)
    for number in range(40):
        assert asked(url, **{"X-Forwarded-For": f"10.0.0.{number}"}) == 200
    assert len(seen) == clients
