"""Vectors in float32, with their norms or divided by them, in one pass over the rows."""

# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

TINY = 1e-12  # as a norm: a zero vector stays zero


@triton.jit
def _forward(x, out, norms, width, count, room, tiny, TILE: tl.constexpr, DIVIDES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    to = row // count * room + row % count
    column = tl.arange(0, TILE)
    value = tl.load(x + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    norm = tl.maximum(tl.sqrt(tl.sum(value * value)), tiny)
    if DIVIDES:
        value /= norm
    tl.store(out + to * width + column, value, mask=column < width)
    tl.store(norms + row, norm)


@triton.jit
def _backward(gradient, units, norms, out, width, tiny, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    at, inside = row * width + column, column < width
    g = tl.load(gradient + at, mask=inside, other=0.0)
    unit = tl.load(units + at, mask=inside, other=0.0)
    norm = tl.load(norms + row)
    along = tl.where(norm > tiny, tl.sum(g * unit), 0.0)
    tl.store(out + at, ((g - unit * along) / norm).to(out.dtype.element_ty), mask=inside)


def unit(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """x / ‖x‖ along the last dimension, in float32. A zero vector stays zero."""
    return _Unit.apply(x)  # type: ignore[no-untyped-call]


def vectors_and_norms(
    x: Float[Tensor, "s c d"], room: int | None = None, *, divides: bool = False
) -> tuple[Float[Tensor, "s k d"], Float[Tensor, "s c"]]:
    """x in float32, divided by its norms or not, and these (no gradient); with more `room` than rows, zeros
    follow them."""
    samples, count, width = x.shape
    room = room or count
    make = torch.empty if room == count else torch.zeros
    out = make(samples, room, width, device=x.device)
    norms = torch.empty(samples, count, device=x.device)
    tile = triton.next_power_of_2(width)
    _forward[(samples * count,)](
        x.contiguous(), out, norms, width, count, room, TINY, TILE=tile, DIVIDES=divides,
        num_warps=_warps(tile),
    )  # fmt: skip
    return out, norms


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        units, norms = vectors_and_norms(x.reshape(1, rows, x.shape[-1]), divides=True)
        ctx.save_for_backward(units, norms)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return units.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        units, norms = ctx.saved_tensors
        out = torch.empty(ctx.shape, dtype=ctx.dtype, device=units.device)
        width = units.shape[-1]
        tile = triton.next_power_of_2(width)
        _backward[(norms.numel(),)](
            gradient.contiguous(), units, norms, out, width, TINY, TILE=tile, num_warps=_warps(tile)
        )
        return out


def _warps(tile: int) -> int:
    return max(1, min(4, tile // 512))
