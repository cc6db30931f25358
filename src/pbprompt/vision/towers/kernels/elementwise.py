"""Draws of a Gaussian, its divergence from a prior, and vectors divided by their norms: a kernel each way.

`variational` has the equations. Their gradients, with t = log σ² − log s²:

    KL: dμ = (μ − e)/s²,  d log σ² = (exp(t) − 1)/2        r = μ + σ·ε: dμ = Σ g,  d log σ² = Σ g·σ·ε/2
"""

# ruff: noqa: N803

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 1024
TINY = 1e-12  # as a norm: a zero vector stays zero


@triton.jit
def _expm1(t):
    """exp(t) − 1, also where it nearly cancels: by its series below 0.1."""
    series = t * (1 + t * (1 / 2 + t * (1 / 6 + t * (1 / 24 + t * (1 / 120 + t / 720)))))
    return tl.where(tl.abs(t) < 0.1, series, tl.exp(t) - 1)


@triton.jit
def _divergence(mean, log_variance, prior, out, count, inverse, log_square, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < count
    t = tl.load(log_variance + at, mask=inside, other=0.0).to(tl.float32) - log_square
    apart = tl.load(mean + at, mask=inside).to(tl.float32) - tl.load(prior + at, mask=inside).to(tl.float32)
    tl.store(out + at, 0.5 * (_expm1(t) - t + apart * apart * inverse), mask=inside)


@triton.jit
def _divergence_backward(
    gradient, mean, log_variance, prior, d_mean, d_log, count, inverse, log_square, TILE: tl.constexpr
):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < count
    g = tl.load(gradient + at, mask=inside, other=0.0)
    t = tl.load(log_variance + at, mask=inside, other=0.0).to(tl.float32) - log_square
    apart = tl.load(mean + at, mask=inside).to(tl.float32) - tl.load(prior + at, mask=inside).to(tl.float32)
    tl.store(d_mean + at, (g * apart * inverse).to(d_mean.dtype.element_ty), mask=inside)
    tl.store(d_log + at, (g * 0.5 * _expm1(t)).to(d_log.dtype.element_ty), mask=inside)


@triton.jit
def _draw(mean, log_variance, noise, out, count, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside, from_ = at < count, tl.program_id(1).to(tl.int64) * count + at
    std = tl.exp(0.5 * tl.load(log_variance + at, mask=inside, other=0.0))
    value = tl.load(mean + at, mask=inside, other=0.0) + std * tl.load(noise + from_, mask=inside, other=0.0)
    tl.store(out + from_, value, mask=inside)


@triton.jit
def _draw_backward(gradient, log_variance, noise, d_mean, d_log, samples, count, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < count
    at_mean = tl.zeros((TILE,), dtype=tl.float32)
    at_std = tl.zeros((TILE,), dtype=tl.float32)
    from_ = at.to(tl.int64)
    for _ in range(samples):
        g = tl.load(gradient + from_, mask=inside, other=0.0)
        at_mean += g
        at_std += g * tl.load(noise + from_, mask=inside, other=0.0)
        from_ += count
    std = tl.exp(0.5 * tl.load(log_variance + at, mask=inside, other=0.0))
    tl.store(d_mean + at, at_mean, mask=inside)
    tl.store(d_log + at, 0.5 * std * at_std, mask=inside)


class Divergence(torch.autograd.Function):
    """KL[q ‖ p] of every class and dimension, from mean, log variance, the prior's mean and its deviation; no
    gradient to the prior."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor, prior: Tensor, std: float) -> Tensor:
        mean, log_variance, prior = (part.contiguous() for part in (mean, log_variance, prior))
        ctx.save_for_backward(mean, log_variance, prior)
        ctx.constants = 1 / std**2, 2 * math.log(std)
        out = torch.empty_like(mean, dtype=torch.float32)
        grid = (triton.cdiv(mean.numel(), TILE),)
        _divergence[grid](mean, log_variance, prior, out, mean.numel(), *ctx.constants, TILE=TILE)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mean, log_variance, prior = ctx.saved_tensors
        d_mean, d_log = torch.empty_like(mean), torch.empty_like(log_variance)
        parts = gradient.contiguous(), mean, log_variance, prior, d_mean, d_log
        grid = (triton.cdiv(mean.numel(), TILE),)
        _divergence_backward[grid](*parts, mean.numel(), *ctx.constants, TILE=TILE)
        return d_mean, d_log, None, None


class GaussianDraw(torch.autograd.Function):
    """r = μ + σ·ε, from mean, log variance and noise."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance, noise = (part.contiguous() for part in (mean, log_variance, noise))
        ctx.save_for_backward(log_variance, noise)
        out, count = torch.empty_like(noise), mean.numel()
        _draw[triton.cdiv(count, TILE), len(noise)](mean, log_variance, noise, out, count, TILE=TILE)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        log_variance, noise = ctx.saved_tensors
        d_mean, d_log = torch.empty_like(log_variance), torch.empty_like(log_variance)
        count = noise[0].numel()
        _draw_backward[(triton.cdiv(count, TILE),)](
            gradient.contiguous(), log_variance, noise, d_mean, d_log, len(noise), count, TILE=TILE
        )
        return d_mean, d_log, None


@triton.jit
def _unit(x, out, norms, width, count, room, tiny, TILE: tl.constexpr, DIVIDES: tl.constexpr):
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
def _unit_backward(gradient, units, norms, out, width, tiny, TILE: tl.constexpr):
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
    return _UnitVectors.apply(x)  # type: ignore[no-untyped-call]


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
    _unit[(samples * count,)](
        x.contiguous(), out, norms, width, count, room, TINY, TILE=tile, DIVIDES=divides,
        num_warps=_warps(tile),
    )  # fmt: skip
    return out, norms


class _UnitVectors(torch.autograd.Function):
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
        _unit_backward[(norms.numel(),)](
            gradient.contiguous(), units, norms, out, width, TINY, TILE=tile, num_warps=_warps(tile)
        )
        return out


def _warps(tile: int) -> int:
    return max(1, min(4, tile // 512))
