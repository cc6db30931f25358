"""Many tiny attentions in one Triton kernel, for packed prompts on CUDA.

A row is one prompt's tail (or the lead itself). A program takes one head and one or a few rows of one sample.
A row's scores, those with the lead among them, fit one tile, so the softmax is computed whole, and again in
the backward pass: nothing but the inputs is kept. Where the lead learns, its gradient is summed over a
program's rows in registers and over programs afterwards, without atomics: the same bits in every run.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.vision.towers.packing import Rows

FEW_ROWS = 256  # up to so many, a program of its own for every two keeps the GPU busy


@cache
def kernels() -> Any:
    """The module of the kernels, imported at the first use: Triton takes as long as a tenth of torch."""
    return import_module("pbprompt.vision.towers.kernels.attention")


def attend(qkv: Sequence[Tensor], rows: Rows, heads: int) -> Float[Tensor, "s m w"]:
    """What every query takes from the lead and from its own tail."""
    q, k, v = qkv
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    per_head = q.shape[-1] // heads
    for first, count, queries, keys in rows.launches:
        kernels().forward_kernel[count, heads, len(q)](
            q, k, v, out, rows.table, first, per_head**-0.5,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), out.stride(0), out.stride(1),
            QUERIES=queries, KEYS=keys, PER_HEAD=per_head, num_warps=_warps(keys),
        )  # fmt: skip
    return out


def attend_backward(
    gradient: Float[Tensor, "s m w"], qkv: Sequence[Tensor], result: Sequence[Tensor], rows: Rows, heads: int
) -> None:
    """Fill dq and, beside each other in one tensor, dk and dv; at a lead that does not learn they lack what
    comes from the tails."""
    (q, k, v), (dq, dk, dv) = qkv, result
    samples, width = len(q), q.shape[-1]
    per_head = width // heads
    gradient = gradient.contiguous()
    at_once = 1
    if rows.lead_learns:  # fewer sums of its gradient to write, and to add up afterwards
        at_once = 2 if len(rows.table) <= FEW_ROWS else 8
    blocks = sum(-(-count // at_once) for _, count, _, _ in rows.launches)
    partial = dq  # not used
    if rows.lead_learns:
        partial = q.new_empty(samples, blocks, rows.lead, 2 * width, dtype=torch.float32)
    before = 0
    for first, count, queries, keys in rows.launches:
        own = -(-count // at_once)
        kernels().backward_kernel[own, heads, samples](
            q, k, v, gradient, dq, dk, dv, partial, rows.table, first, first + count, before, blocks,
            rows.lead, per_head**-0.5, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            gradient.stride(0), gradient.stride(1), dq.stride(0), dq.stride(1), dk.stride(0), dk.stride(1),
            QUERIES=queries, KEYS=keys, PER_HEAD=per_head, WIDTH=width, ROWS=at_once,
            LEARNS=rows.lead_learns, num_warps=_warps(keys),
        )  # fmt: skip
        before += own
    if rows.lead_learns:
        across = 64
        kernels().lead_kernel[-(-2 * width // across), rows.lead, samples](
            partial, dk, blocks, rows.lead, dk.stride(0), dk.stride(1),
            COLUMNS=2 * width, SOME=32, ACROSS=across,
        )  # fmt: skip


def _warps(tile: int) -> int:
    return max(1, min(4, tile // 16))
