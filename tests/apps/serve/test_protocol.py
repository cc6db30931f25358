"""Connections that send nothing, or too much, against a real server."""

import logging
import socket
from urllib.parse import urlsplit

import pytest

from pbprompt.apps.serve import protocol
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
