"""Processes that can be ended: by time, by memory, or by whoever closes."""

import operator
import os
import signal
import threading
import time

import pytest

from pbprompt.vision.images.workers import Workers


@pytest.fixture
def one():
    workers = Workers(1, memory=200 << 20, seconds=30)
    yield workers
    workers.close()


def test_answers_and_errors_arrive_from_one_other_process(one):
    assert one.ask(operator.add, 1, 2) == 3
    first = one.ask(os.getpid)
    with pytest.raises(ZeroDivisionError):
        one.ask(operator.truediv, 1, 0)
    assert one.ask(os.getpid) == first != os.getpid()


def test_memory_is_bounded(one):
    with pytest.raises(MemoryError):
        one.ask(bytearray, 1 << 30)
    assert len(one.ask(bytearray, 1 << 20)) == 1 << 20


def test_a_process_that_died_is_replaced(one):
    with pytest.raises(EOFError):
        one.ask(os._exit, 1)
    assert one.ask(operator.add, 1, 2) == 3


def test_one_that_is_late_is_ended():
    workers = Workers(1, seconds=0.2)
    with pytest.raises(TimeoutError):
        workers.ask(time.sleep, 600)
    assert not workers._running
    workers.close()


def test_one_that_works_too_long_is_ended():
    workers = Workers(1, seconds=0.2)
    with pytest.raises(TimeoutError):
        workers.ask(eval, "sum(range(10**12))")
    workers.close()


def test_one_that_the_machine_keeps_waiting_is_not_late(monkeypatch):
    """By the clock it takes twice its seconds, of which it works for next to none."""
    workers = Workers(1, seconds=0.4)
    assert workers.ask(time.sleep, 0.8) is None
    monkeypatch.setattr("pbprompt.vision.images.workers._processor_seconds", lambda process: None)
    with pytest.raises(TimeoutError):  # where the system does not say, the clock has to do
        workers.ask(time.sleep, 600)
    workers.close()


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can ask whether a child is stopped")
def test_one_that_was_stopped_is_not_late():
    workers = Workers(1, seconds=0.2)
    with pytest.raises(EOFError):
        workers.ask(signal.raise_signal, signal.SIGSTOP)
    assert workers.ask(operator.add, 1, 2) == 3
    workers.close()


def test_modules_are_imported_beforehand():
    workers = Workers(1, prepare="colorsys")
    assert "colorsys" in workers.ask(eval, "list(__import__('sys').modules)")
    workers.close()


def test_closing_does_not_wait_for_what_they_do():
    workers = Workers(1)
    workers.ask(os.getpid)
    ended = []

    def ask():
        try:
            workers.ask(time.sleep, 600)
        except EOFError:
            ended.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    while workers._idle.qsize():
        time.sleep(0.01)
    workers.close()
    thread.join()
    assert ended and not workers._running
    with pytest.raises(EOFError):
        workers.ask(os.getpid)


def test_an_answer_that_nobody_waited_for_is_not_the_next_questions(monkeypatch):
    """Ctrl-C while a process is at work."""
    workers = Workers(1)
    assert workers.ask(abs, -1) == 1
    (worker,) = workers._running

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker._line, "poll", interrupted, raising=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            workers.ask(abs, -2)
        assert workers.ask(abs, -3) == 3
    finally:
        workers.close()
