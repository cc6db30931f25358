"""Self-attention over [r_c, w_1, …, w_b] for every class: sequences that differ in their first token alone.

`generator` has the equations. The words' queries, keys and values stand once behind those of the latents; a
program takes one head and a few sequences, each of which fits one tile. The gradient of what all sequences
share is summed over a program's sequences in registers and over programs afterwards, without atomics. A
float32 product is three on the tensor cores, exact to the last bits.
"""

# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TOKENS = 16  # a tile
FEW = 256  # sequences: up to so many, one a program on the way back keeps the GPU busy


@triton.jit
def _load(projected, rows, there, part, head, WIDTH: tl.constexpr, PER_HEAD: tl.constexpr):
    columns = part * WIDTH + head * PER_HEAD + tl.arange(0, PER_HEAD)
    at = projected + rows[:, None].to(tl.int64) * (3 * WIDTH) + columns[None, :]
    return tl.load(at, mask=there[:, None], other=0.0)


@triton.jit
def _probabilities(q, k, tokens, scale, TOKENS: tl.constexpr):
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    scores = tl.where((tl.arange(0, TOKENS) < tokens)[None, :], scores, -1.0e30)
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return scores / tl.sum(scores, axis=1)[:, None]


@triton.jit
def _forward(
    projected, out, count, tokens, skipped, scale,
    WIDTH: tl.constexpr, PER_HEAD: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    t = tl.arange(0, TOKENS)
    rows, there = tl.where(t == 0, sequence, count + t - 1), t < tokens
    q = _load(projected, rows, there, 0, head, WIDTH, PER_HEAD)
    k = _load(projected, rows, there, 1, head, WIDTH, PER_HEAD)
    v = _load(projected, rows, there, 2, head, WIDTH, PER_HEAD)
    result = tl.dot(_probabilities(q, k, tokens, scale, TOKENS), v, input_precision="tf32x3")
    to = (sequence * (tokens - skipped) + t - skipped)[:, None].to(tl.int64) * WIDTH
    columns = head * PER_HEAD + tl.arange(0, PER_HEAD)
    tl.store(out + to + columns[None, :], result, mask=(there & (t >= skipped))[:, None])


@triton.jit
def _backward(
    projected, gradient, out, partial, count, tokens, skipped, scale,
    WIDTH: tl.constexpr, PER_HEAD: tl.constexpr, TOKENS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    t = tl.arange(0, TOKENS)
    columns = head * PER_HEAD + tl.arange(0, PER_HEAD)
    shared_q = tl.zeros((TOKENS, PER_HEAD), dtype=tl.float32)
    shared_k = tl.zeros((TOKENS, PER_HEAD), dtype=tl.float32)
    shared_v = tl.zeros((TOKENS, PER_HEAD), dtype=tl.float32)
    for turn in range(SEQUENCES):
        sequence = block * SEQUENCES + turn
        known = tl.where(sequence < count, tokens, 0)
        rows, there = tl.where(t == 0, sequence, count + t - 1), t < known
        q = _load(projected, rows, there, 0, head, WIDTH, PER_HEAD)
        k = _load(projected, rows, there, 1, head, WIDTH, PER_HEAD)
        v = _load(projected, rows, there, 2, head, WIDTH, PER_HEAD)
        from_ = (sequence * (tokens - skipped) + t - skipped)[:, None].to(tl.int64) * WIDTH
        visible = (there & (t >= skipped))[:, None]
        do = tl.load(gradient + from_ + columns[None, :], mask=visible, other=0.0)
        p = _probabilities(q, k, tokens, scale, TOKENS)
        dp = tl.dot(do, tl.trans(v), input_precision="tf32x3")
        ds = p * (dp - tl.sum(p * dp, axis=1)[:, None]) * scale
        dq = tl.dot(ds, k, input_precision="tf32x3")
        dk = tl.dot(tl.trans(ds), q, input_precision="tf32x3")
        dv = tl.dot(tl.trans(p), do, input_precision="tf32x3")
        own = (there & (t == 0))[:, None]
        at = out + rows[:, None].to(tl.int64) * (3 * WIDTH) + columns[None, :]
        tl.store(at, dq, mask=own)
        tl.store(at + WIDTH, dk, mask=own)
        tl.store(at + 2 * WIDTH, dv, mask=own)
        shared_q += dq
        shared_k += dk
        shared_v += dv
    at = partial + (block * (tokens - 1) + t - 1)[:, None].to(tl.int64) * (3 * WIDTH) + columns[None, :]
    words = ((t > 0) & (t < tokens))[:, None]
    tl.store(at, shared_q, mask=words)
    tl.store(at + WIDTH, shared_k, mask=words)
    tl.store(at + 2 * WIDTH, shared_v, mask=words)


def takes(tokens: int, per_head: int) -> bool:
    """Whether a sequence fits the tile."""
    return 1 < tokens <= TOKENS and per_head in (16, 32, 64, 128)


class Attend(torch.autograd.Function):
    """What each sequence's tokens, but so many `skipped` first ones, take from its tokens.

    `projected`: queries, keys and values of n latents, then of the words, as rows.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, words: int, heads: int, skipped: int) -> Tensor:
        projected = projected.contiguous()
        count, width = len(projected) - words, projected.shape[1] // 3
        ctx.save_for_backward(projected)
        ctx.sizes = count, width, words, heads, skipped
        out = projected.new_empty(count, words + 1 - skipped, width)
        _forward[count, heads](
            projected, out, count, words + 1, skipped, (width // heads) ** -0.5,
            WIDTH=width, PER_HEAD=width // heads, TOKENS=TOKENS, num_warps=1,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (projected,) = ctx.saved_tensors
        count, width, words, heads, skipped = ctx.sizes
        out = torch.empty_like(projected)
        sequences, warps = (1, 1) if count <= FEW else (8, 2)
        partial = projected.new_empty(triton.cdiv(count, sequences), words, 3 * width)
        _backward[len(partial), heads](
            projected, gradient.contiguous(), out, partial, count, words + 1, skipped,
            (width // heads) ** -0.5, WIDTH=width, PER_HEAD=width // heads, TOKENS=TOKENS,
            SEQUENCES=sequences, num_warps=warps,
        )  # fmt: skip
        torch.sum(partial, 0, out=out[count:])
        return out, None, None, None
