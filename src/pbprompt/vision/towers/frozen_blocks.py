"""The text tower's blocks on CUDA, there and back by hand.

Their weights are frozen, so the way back asks for no gradient but that of the input. Of a block it needs what
the parts that are not linear took in: both sums before the layer norms, queries, keys and values, and the
MLP's hidden units; nothing else is kept. Each sum is added, normed and stored by one kernel of
`kernels`, and so is its gradient: at a hundred classes a step is as long as its kernels are many.

    h = x + out(attention(qkv(ln_1(x)))),  x′ = h + proj(act(fc(ln_2(h))))     a block; the last at EOT alone
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pbprompt.vision.towers import packed_attention
from pbprompt.vision.towers.kernels import available
from pbprompt.vision.towers.layers import QUICK, Block, Mlp
from pbprompt.vision.towers.packed_attention import kernels
from pbprompt.vision.towers.packing import Layout

ELEMENTS_A_PROGRAM = 2048


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
            attended = packed_attention.attend(qkv.chunk(3, dim=-1), layout.causal_rows, block.attn.heads)
            middle, hidden, delta = _finish(x, attended, block)
            kept += [x, qkv, middle, hidden]
            x, normed = _add_and_norm(middle, delta, following.ln_1)
        weight, bias = last.attn.in_proj_weight, last.attn.in_proj_bias
        q = F.linear(normed.index_select(1, layout.eot), weight[:width], bias[:width])
        kv = F.linear(normed, weight[width:], bias[width:])
        attended = packed_attention.attend((q, *kv.chunk(2, dim=-1)), layout.eot_rows, last.attn.heads)
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
        packed_attention.attend_backward(attended, parts, to, layout.eot_rows, last.attn.heads)
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
            packed_attention.attend_backward(attended, parts, to, layout.causal_rows, block.attn.heads)
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
    _over_rows(kernels().norm_kernel, norm, x, delta, norm.weight, norm.bias, total, normed)
    return total, normed


def _norm_backward(
    gradient: Float[Tensor, "s n w"],
    x: Float[Tensor, "s n w"],
    norm: nn.LayerNorm,
    residual: Float[Tensor, "s n w"],
) -> Float[Tensor, "s n w"]:
    """The gradient at x of that at norm(x), and `residual` added to it."""
    out = torch.empty_like(x)
    _over_rows(kernels().norm_backward_kernel, norm, gradient, x, norm.weight, residual, out)
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
    kernels().quick_gelu_kernel[grid](hidden, out, count, QUICK, TILE=ELEMENTS_A_PROGRAM)
    return out


def _activate_backward(
    gradient: Float[Tensor, "s n k"], hidden: Float[Tensor, "s n k"], mlp: Mlp
) -> Float[Tensor, "s n k"]:
    """In the place of the gradient, where that will do."""
    if not mlp.quick:
        return torch.ops.aten.gelu_backward(gradient, hidden, approximate=mlp.approximate)
    count = hidden.numel()
    grid = (-(-count // ELEMENTS_A_PROGRAM),)
    kernels().quick_gelu_backward_kernel[grid](
        gradient, hidden, gradient, count, QUICK, TILE=ELEMENTS_A_PROGRAM
    )
    return gradient
