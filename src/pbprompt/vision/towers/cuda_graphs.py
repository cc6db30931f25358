"""Work on a GPU recorded once as a CUDA graph, and started again at once."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

WARM_UP = 3  # plain calls before the capture, in which libraries make what they need once


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Record what is started within.

    Two things spoil a capture that have nothing to do with it, and both are kept out. Other threads may go on
    using the GPU: only this thread's calls are watched. And no garbage is collected meanwhile, for in it may
    be another graph, which cannot be freed during a capture.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def aside() -> Iterator[None]:
    """On another stream, as a capture has it: autograd remembers where gradients arrive."""
    # gradients arrive here on a stream of their own, by design: nothing to warn of
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        yield
    here.wait_stream(stream)


def graphed(function: Callable[[Tensor], Tensor], sample: Tensor) -> Callable[[Tensor], Tensor]:
    """`function` of one tensor, its way there and back a graph each, for arguments of the sample's shape.

    A graph keeps its activations and results in one place: the next call overwrites them.
    """
    taken = sample.detach().clone().requires_grad_()
    with aside():
        for _ in range(WARM_UP):
            made = function(taken)
            torch.autograd.grad(made, taken, torch.ones_like(made))
    there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with captured(there):
        made = function(taken)
    given = torch.empty_like(made)
    with captured(back, pool=there.pool()):
        (result,) = torch.autograd.grad(made, taken, given)
    made = made.detach()

    class Replay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, argument: Tensor) -> Tensor:
            taken.data.copy_(argument)
            there.replay()
            return made.clone()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            given.copy_(gradient)
            back.replay()
            return result.clone()

    return Replay.apply
