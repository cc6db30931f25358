"""Many tiny attentions in one Triton kernel, for packed prompts on CUDA.

A row is one prompt's tail (or the lead itself). A program takes one head and a few rows of one sample, one
after another. A row's scores fit one tile, so the softmax is computed whole, and again in the backward pass:
nothing but the inputs is kept. The gradient of the shared lead is summed over a program's rows in registers
and over programs afterwards, without atomics: the same bits in every run.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.packing import Layout, Rows, tile_of

try:
    from pbprompt.clip.packed_kernels import backward_kernel, forward_kernel
except ImportError:  # torch's CPU builds come without Triton
    forward_kernel = backward_kernel = None

ROWS_A_PROGRAM = 4


def usable(x: Tensor, per_head: int) -> bool:
    """Whether the kernel can take these activations."""
    return (
        forward_kernel is not None
        and x.is_cuda
        and x.dtype != torch.float64
        and per_head in (16, 32, 64, 128)
    )


def attend_causally(qkv: Float[Tensor, "s n w3"], layout: Layout, heads: int) -> Float[Tensor, "s n w"]:
    """Every position to the lead and to its own tail up to itself."""
    return _Causal.apply(qkv, layout.causal_rows, heads)  # type: ignore[no-untyped-call]


def attend_from_eot(
    q: Float[Tensor, "s r w"], kv: Float[Tensor, "s n w2"], layout: Layout, heads: int
) -> Float[Tensor, "s r w"]:
    """Every EOT to the lead and to its own tail."""
    return _FromEot.apply(q, kv, layout.eot_rows, heads)  # type: ignore[no-untyped-call]


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, rows: Rows, heads: int) -> Tensor:
        q, k, v = qkv.chunk(3, dim=-1)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        _forward(q, k, v, out, rows, heads)
        ctx.save_for_backward(qkv)
        ctx.rows, ctx.heads = rows, heads
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (qkv,) = ctx.saved_tensors
        result = torch.empty_like(qkv)
        (q, k, v), (dq, dk, dv) = qkv.chunk(3, dim=-1), result.chunk(3, dim=-1)
        lead = _backward(q, k, v, gradient, dq, dk, dv, ctx.rows, ctx.heads)
        result[:, : ctx.rows.lead, gradient.shape[-1] :] += lead
        return result, None, None


class _FromEot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, rows: Rows, heads: int) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        k, v = kv.chunk(2, dim=-1)
        _forward(q, k, v, out, rows, heads)
        ctx.save_for_backward(q, kv)
        ctx.rows, ctx.heads = rows, heads
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, kv = ctx.saved_tensors
        dq, result = torch.empty_like(q), torch.zeros_like(kv)
        (k, v), (dk, dv) = kv.chunk(2, dim=-1), result.chunk(2, dim=-1)
        result[:, : ctx.rows.lead] = _backward(q, k, v, gradient, dq, dk, dv, ctx.rows, ctx.heads)
        return dq, result, None, None


def _forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, rows: Rows, heads: int) -> None:
    per_head = q.shape[-1] // heads
    for first, count, tile in rows.launches:
        forward_kernel[_grid(count, heads, len(q))](
            q, k, v, out, rows.table, first, first + count, per_head**-0.5,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), out.stride(0), out.stride(1),
            TILE=tile, LEAD=tile_of(max(rows.lead, 1)), PER_HEAD=per_head, ROWS=ROWS_A_PROGRAM,
            num_warps=_warps(tile),
        )  # fmt: skip


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gradient: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    rows: Rows,
    heads: int,
) -> Float[Tensor, "s l w2"]:
    """Fill dq, dk, dv; return what the tails add to the lead's keys and values."""
    samples, width = len(q), q.shape[-1]
    per_head = width // heads
    gradient = gradient.contiguous()
    blocks = sum(_blocks(count) for _, count, _ in rows.launches)
    partial = torch.empty(samples, blocks, rows.lead, 2 * width, dtype=torch.float32, device=q.device)
    before = 0
    for first, count, tile in rows.launches:
        backward_kernel[_grid(count, heads, samples)](
            q, k, v, gradient, dq, dk, dv, partial, rows.table, first, first + count, before, blocks,
            rows.lead, per_head**-0.5, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            gradient.stride(0), gradient.stride(1), dq.stride(0), dq.stride(1), dk.stride(0), dk.stride(1),
            TILE=tile, LEAD=tile_of(max(rows.lead, 1)), PER_HEAD=per_head, WIDTH=width, ROWS=ROWS_A_PROGRAM,
            num_warps=_warps(tile),
        )  # fmt: skip
        before += _blocks(count)
    return partial.sum(dim=1).to(q.dtype)


def _grid(count: int, heads: int, samples: int) -> tuple[int, int, int]:
    return _blocks(count), heads, samples


def _blocks(count: int) -> int:
    return -(-count // ROWS_A_PROGRAM)


def _warps(tile: int) -> int:
    return max(1, min(4, tile // 16))
