"""A captured function is the plain one, whatever else goes on in the process."""

import gc
import threading

import pytest
import torch

from pbprompt.vision.towers.cuda_graphs import captured, graphed

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_nothing_is_collected_during_a_capture(monkeypatch):
    """Whether it ends well or not; and what was off before stays off."""

    class Graph:
        def __init__(self, *_, capture_error_mode, **__):
            assert capture_error_mode == "thread_local"

        def __enter__(self):
            assert not gc.isenabled()

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    with captured(object()):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), captured(object()):
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with captured(object()):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@needs_gpu
def test_replays_are_the_plain_function():
    weight = torch.randn(5, 5, device="cuda")
    replay = graphed(lambda x: (x @ weight).sin(), torch.randn(3, 5, device="cuda"))
    for _ in range(3):
        x = torch.randn(3, 5, device="cuda", requires_grad=True)
        towards = torch.randn(3, 5, device="cuda")
        (found,) = torch.autograd.grad((replay(x) * towards).sum(), x)
        (wanted,) = torch.autograd.grad(((x @ weight).sin() * towards).sum(), x)
        torch.testing.assert_close(replay(x), (x @ weight).sin())
        torch.testing.assert_close(found, wanted)


@needs_gpu
@pytest.mark.parametrize("neighbour", ["allocates", "copies", "waits", "leaves dead graphs"])
def test_neighbours_do_not_spoil_a_capture(neighbour):
    """Each of these made an earlier capture fail, and the thread beside it too."""
    failed, stop = [], threading.Event()

    def busy():
        while not stop.is_set():
            try:
                if neighbour == "allocates":
                    torch.empty(1 << 26, device="cuda")
                    torch.cuda.empty_cache()
                elif neighbour == "copies":
                    torch.ones(1000).pin_memory().to("cuda", non_blocking=True)
                else:
                    torch.ones(1000, device="cuda").sum().item()
            except RuntimeError as error:
                failed.append(error)
                return

    weight = torch.randn(64, 64, device="cuda")

    def long(x):
        for _ in range(200):
            x = (x @ weight).sin()
        if neighbour == "leaves dead graphs" and torch.cuda.is_current_stream_capturing():
            [[] for _ in range(100_000)]  # enough for the collector to run, were it on
        return x

    if neighbour == "leaves dead graphs":
        dead = {"graph": graphed(long, torch.randn(3, 64, device="cuda"))}
        dead["itself"] = dead
        del dead
    thread = threading.Thread(target=busy)
    if neighbour != "leaves dead graphs":
        thread.start()
    try:
        for _ in range(5):
            replay = graphed(long, torch.randn(3, 64, device="cuda"))
            x = torch.randn(3, 64, device="cuda", requires_grad=True)
            torch.testing.assert_close(replay(x), long(x))
    finally:
        stop.set()
        if thread.ident:
            thread.join()
    assert not failed
    torch.randn(3, device="cuda")  # a capture that failed would have left the generator unusable
