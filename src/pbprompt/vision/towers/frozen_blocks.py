"""The text tower's blocks on CUDA, there and back by hand.

Their weights are frozen, so the way back asks for no gradient but that of the input. Of a block it needs what
the parts that are not linear took in: both sums before the layer norms, queries, keys and values, and the
MLP's hidden units; nothing else is kept. Each sum is added, normed and stored by one kernel of
`kernels`, and so is its gradient: at a hundred classes a step is as long as its kernels are many.

    h = x + out(attention(qkv(ln_1(x)))),  x′ = h + proj(act(fc(ln_2(h))))     a block; the last at EOT alone

Attention is many tiny ones in one Triton kernel. A row is one prompt's tail (or the lead itself). A program
takes one head and one or a few rows of one sample. A row's scores, those with the lead among them, fit one
tile, so the softmax is computed whole, and again in the backward pass: nothing but the inputs is kept. Where
the lead learns, its gradient is summed over a program's rows in registers and over programs afterwards,
without atomics: the same bits in every run.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pbprompt.vision.towers.kernels import available
from pbprompt.vision.towers.layers import QUICK, Block, Mlp
from pbprompt.vision.towers.packing import Layout, Rows

ELEMENTS_A_PROGRAM = 2048
FEW_ROWS = 256  # up to so many, a program of its own for every two keeps the GPU busy


def usable(x: Float[Tensor, "s n w"], blocks: Sequence[Block]) -> bool:
    """Whether the kernels can take these activations."""
    per_head = x.shape[-1] // blocks[0].attn.heads
    fits = x.is_cuda and x.dtype != torch.float64 and per_head in (16, 32, 64, 128)
    return fits and available()


def states_at_eot(
    x: Float[Tensor, "s n w"], blocks: Sequence[Block], layout: Layout
) -> Float[Tensor, "s r w"]:
    """What the blocks make of packed prompts, at each EOT."""
    return _Blocks.apply(x, blocks, layout)  # type: ignore[no-untyped-call]


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Sequence[Block], layout: Layout) -> Tensor:
        kept, width, last = [], x.shape[-1], blocks[-1]
        x = x.contiguous()
        normed = blocks[0].ln_1(x)
        for block, following in pairwise(blocks):
            qkv = F.linear(normed, block.attn.in_proj_weight, block.attn.in_proj_bias)
            attended = attend_rows(qkv.chunk(3, dim=-1), layout.causal_rows, block.attn.heads)
            middle, hidden, delta = _finish(x, attended, block)
            kept += [x, qkv, middle, hidden]
            x, normed = _add_and_norm(middle, delta, following.ln_1)
        weight, bias = last.attn.in_proj_weight, last.attn.in_proj_bias
        q = F.linear(normed.index_select(1, layout.eot), weight[:width], bias[:width])
        kv = F.linear(normed, weight[width:], bias[width:])
        attended = attend_rows((q, *kv.chunk(2, dim=-1)), layout.eot_rows, last.attn.heads)
        middle, hidden, delta = _finish(x.index_select(1, layout.eot), attended, last)
        ctx.save_for_backward(*kept, x, q, kv, middle, hidden)
        ctx.blocks, ctx.layout = blocks, layout
        return middle + delta

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        *kept, x, q, kv, middle, hidden = ctx.saved_tensors
        layout, width, last = ctx.layout, x.shape[-1], ctx.blocks[-1]
        gradient = _finish_backward(gradient.contiguous(), middle, hidden, last)
        attended = gradient @ last.attn.out_proj.weight
        dq, dkv = torch.empty_like(q), torch.zeros_like(kv)
        parts, to = (q, *kv.chunk(2, dim=-1)), (dq, *dkv.chunk(2, dim=-1))
        attend_rows_backward(attended, parts, to, layout.eot_rows, last.attn.heads)
        normed = dkv @ last.attn.in_proj_weight[width:]
        normed.index_add_(1, layout.eot, dq @ last.attn.in_proj_weight[:width])
        straight = torch.zeros_like(x).index_copy_(1, layout.eot, gradient)
        gradient = _norm_backward(normed, x, last.ln_1, straight)
        for block in reversed(ctx.blocks[:-1]):
            hidden, middle, qkv, x = (kept.pop() for _ in range(4))
            gradient = _finish_backward(gradient, middle, hidden, block)
            attended = gradient @ block.attn.out_proj.weight
            dqkv = torch.empty_like(qkv)
            parts, to = qkv.chunk(3, dim=-1), dqkv.chunk(3, dim=-1)
            attend_rows_backward(attended, parts, to, layout.causal_rows, block.attn.heads)
            gradient = _norm_backward(dqkv @ block.attn.in_proj_weight, x, block.ln_1, gradient)
        return gradient, None, None


def _finish(
    x: Float[Tensor, "s n w"], attended: Float[Tensor, "s n w"], block: Block
) -> tuple[Float[Tensor, "s n w"], Float[Tensor, "s n k"], Float[Tensor, "s n w"]]:
    """h, the MLP's hidden units, and what it adds to h."""
    middle, normed = _add_and_norm(x, block.attn.out_proj(attended), block.ln_2)
    hidden = block.mlp.c_fc(normed)
    return middle, hidden, block.mlp.c_proj(_activate(hidden, block.mlp))


def _finish_backward(
    gradient: Float[Tensor, "s n w"],
    middle: Float[Tensor, "s n w"],
    hidden: Float[Tensor, "s n k"],
    block: Block,
) -> Float[Tensor, "s n w"]:
    """The gradient at h of that at x′."""
    at_hidden = _activate_backward(gradient @ block.mlp.c_proj.weight, hidden, block.mlp)
    return _norm_backward(at_hidden @ block.mlp.c_fc.weight, middle, block.ln_2, gradient)


def _add_and_norm(
    x: Float[Tensor, "s n w"], delta: Float[Tensor, "s n w"], norm: nn.LayerNorm
) -> tuple[Float[Tensor, "s n w"], Float[Tensor, "s n w"]]:
    """x + delta, and that normed."""
    total, normed = torch.empty_like(x), torch.empty_like(x)
    _over_rows(_kernels().norm_kernel, norm, x, delta, norm.weight, norm.bias, total, normed)
    return total, normed


def _norm_backward(
    gradient: Float[Tensor, "s n w"],
    x: Float[Tensor, "s n w"],
    norm: nn.LayerNorm,
    residual: Float[Tensor, "s n w"],
) -> Float[Tensor, "s n w"]:
    """The gradient at x of that at norm(x), and `residual` added to it."""
    out = torch.empty_like(x)
    _over_rows(_kernels().norm_backward_kernel, norm, gradient, x, norm.weight, residual, out)
    return out


def _over_rows(kernel: Any, norm: nn.LayerNorm, *tensors: Tensor) -> None:
    width = tensors[0].shape[-1]
    rows, tile = tensors[0].numel() // width, 1 << (width - 1).bit_length()
    at_once = _rows_at_once(rows)
    grid = (-(-rows // at_once),)
    kernel[grid](*tensors, rows, norm.eps, WIDTH=width, TILE=tile, ROWS=at_once, num_warps=at_once)


def _rows_at_once(rows: int) -> int:
    """1, 2 or 4 of a program, a warp each: Triton takes powers of two alone."""
    return 4 if rows >= 16_384 else 2 if rows >= 8192 else 1


def _activate(hidden: Float[Tensor, "s n k"], mlp: Mlp) -> Float[Tensor, "s n k"]:
    if not mlp.quick:
        return F.gelu(hidden, approximate=mlp.approximate)
    out, count = torch.empty_like(hidden), hidden.numel()
    grid = (-(-count // ELEMENTS_A_PROGRAM),)
    _kernels().quick_gelu_kernel[grid](hidden, out, count, QUICK, TILE=ELEMENTS_A_PROGRAM)
    return out


def _activate_backward(
    gradient: Float[Tensor, "s n k"], hidden: Float[Tensor, "s n k"], mlp: Mlp
) -> Float[Tensor, "s n k"]:
    """In the place of the gradient, where that will do."""
    if not mlp.quick:
        return torch.ops.aten.gelu_backward(gradient, hidden, approximate=mlp.approximate)
    count = hidden.numel()
    grid = (-(-count // ELEMENTS_A_PROGRAM),)
    _kernels().quick_gelu_backward_kernel[grid](
        gradient, hidden, gradient, count, QUICK, TILE=ELEMENTS_A_PROGRAM
    )
    return gradient


@cache
def _kernels() -> Any:
    """The module of the kernels, imported at the first use: Triton takes as long as a tenth of torch."""
    return import_module("pbprompt.vision.towers.kernels.attention")


def attend_rows(qkv: Sequence[Tensor], rows: Rows, heads: int) -> Float[Tensor, "s m w"]:
    """What every query takes from the lead and from its own tail."""
    q, k, v = qkv
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    per_head = q.shape[-1] // heads
    for first, count, queries, keys in rows.launches:
        _kernels().forward_kernel[count, heads, len(q)](
            q, k, v, out, rows.table, first, per_head**-0.5,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), out.stride(0), out.stride(1),
            QUERIES=queries, KEYS=keys, PER_HEAD=per_head, num_warps=_warps_of(keys),
        )  # fmt: skip
    return out


def attend_rows_backward(
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
        _kernels().backward_kernel[own, heads, samples](
            q, k, v, gradient, dq, dk, dv, partial, rows.table, first, first + count, before, blocks,
            rows.lead, per_head**-0.5, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            gradient.stride(0), gradient.stride(1), dq.stride(0), dq.stride(1), dk.stride(0), dk.stride(1),
            QUERIES=queries, KEYS=keys, PER_HEAD=per_head, WIDTH=width, ROWS=at_once,
            LEARNS=rows.lead_learns, num_warps=_warps_of(keys),
        )  # fmt: skip
        before += own
    if rows.lead_learns:
        across = 64
        _kernels().lead_kernel[-(-2 * width // across), rows.lead, samples](
            partial, dk, blocks, rows.lead, dk.stride(0), dk.stride(1),
            COLUMNS=2 * width, SOME=32, ACROSS=across,
        )  # fmt: skip


def _warps_of(tile: int) -> int:
    return max(1, min(4, tile // 16))
