"""One run over several processes (torchrun): who does what, and how the parts come together.

Every process runs the same program with the same random streams, and so the same steps. What costs is shared
out: the text tower by classes, the image tower and the scoring of images by items. Alone, each function here
does nothing.

Gradients: every process computes the whole loss from gathered features, but back-propagates through its own
classes and images alone. `gather` therefore multiplies the gradient of its own part by the number of
processes, and `average` takes the mean over processes: the towers' paths add up to the whole, and everything
that each process computed in full stays as it is.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pbprompt.errors import InputError

T = TypeVar("T")


def pick(device: str) -> str:
    """The device itself, where it says "auto": a GPU if torch sees one, or else the CPU."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def start(device: str) -> str:
    """Join the other processes where torchrun started several; returns the device of this one."""
    device = pick(device)
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or dist.is_initialized():
        return device
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def stop() -> None:
    """Leave together, before the interpreter ends: what is left of a group then may abort the process."""
    if world()[1] > 1:
        dist.barrier()
        dist.destroy_process_group()


def world() -> tuple[int, int]:
    """(which process this is, how many there are)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_main() -> bool:
    """Whether this process writes and prints."""
    return world()[0] == 0


def own(rows: Sequence[T]) -> Sequence[T]:
    """This process's share of some rows: every n-th."""
    rank, size = world()
    return rows[rank::size]


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the processes, in place."""
    if (size := world()[1]) > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= size


def gather(mine: Tensor, total: int, dim: int = 0) -> Tensor:
    """All of a dimension in order, from each process's share (as `own` deals it), with gradients to the
    share."""
    return mine if world()[1] == 1 else _Gather.apply(mine, total, dim)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """Rows dealt round robin, put back in order; a short share is padded, which falls off the end."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, total: int, dim: int) -> Tensor:
        ctx.dim, size = dim, world()[1]
        missing = -(-total // size) - mine.shape[dim]
        shape = (*mine.shape[:dim], missing, *mine.shape[dim + 1 :])
        mine = torch.cat([mine, mine.new_zeros(shape)], dim=dim) if missing else mine.contiguous()
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        return torch.stack(parts, dim=dim + 1).flatten(dim, dim + 1).narrow(dim, 0, total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        rank, size = world()
        own = torch.arange(rank, gradient.shape[ctx.dim], size, device=gradient.device)
        return gradient.index_select(ctx.dim, own) * size, None, None


def gather_objects(mine: T) -> list[T]:
    """What each process has, in their order."""
    if world()[1] == 1:
        return [mine]
    every: list[T] = [mine] * world()[1]
    dist.all_gather_object(every, mine)
    return every


def agreed(work: Callable[[], T]) -> T:
    """The work's result, where it fails in no process: else none would wait for one that stopped."""
    if world()[1] == 1:
        return work()
    message = ""
    try:
        result = work()
    except InputError as failure:
        message = str(failure)
    for first in filter(None, gather_objects(message)):
        raise InputError(first)
    return result
