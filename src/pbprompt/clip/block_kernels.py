"""The Triton kernels between the matrix products of `frozen_blocks`."""

# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    x, delta, weight, bias, total, normed, rows, eps,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """total = x + delta; normed = weight · (total − mean)/std + bias, row by row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        value += tl.load(delta + at, mask=inside, other=0.0)
        tl.store(total + at, value, mask=inside)
    value = value.to(tl.float32)
    centred = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)[:, None]
    own = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    result = centred * scale * own[None, :] + shift[None, :]
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    gradient, x, weight, residual, out, rows, eps,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out = residual + (g − mean(g) − x̂·mean(g·x̂))/std, with x̂ = (x − mean)/std and g = weight · gradient."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)[:, None]
    centred *= scale
    own = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * own[None, :]
    along = (tl.sum(g * centred, axis=1) / WIDTH)[:, None]
    result = scale * (g - (tl.sum(g, axis=1) / WIDTH)[:, None] - centred * along)
    result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quick_gelu_kernel(x, out, count, quick, TILE: tl.constexpr):
    """x·sigmoid(quick·x)."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    result = value * tl.sigmoid(quick * value)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def quick_gelu_backward_kernel(gradient, x, out, count, quick, TILE: tl.constexpr):
    """gradient · (s + quick·x·s·(1 − s)), s = sigmoid(quick·x)."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=at < count, other=0.0).to(tl.float32)
    s = tl.sigmoid(quick * value)
    result = g * (s + quick * value * s * (1 - s))
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < count)
