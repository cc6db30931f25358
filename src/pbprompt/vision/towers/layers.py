"""What towers share: the transformer block of CLIP and SigLIP, the stack of them that an image goes through,
and square patches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:
    from pbprompt.vision.towers.taps import Tap, Taps
    from pbprompt.vision.towers.text import TextConfig

CLIP_EPS = 1e-5  # of its layer norms
FINE_EPS = 1e-6  # of SigLIP's, EVA-02's and DINOv2's
QUICK = 1.702  # QuickGELU(x) = x·sigmoid(1.702 x)
Seen = tuple[Float[Tensor, "b d"], Float[Tensor, "b m e"]]  # an image, and its patches


@dataclass(frozen=True)
class PatchConfig:
    """Sizes of a stack of blocks over square patches of an image; what does not fill a patch is left out.
    `hidden` is the width inside the MLPs, 4·width where it is not given."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    hidden: int | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        side = self.image_size // self.patch_size
        return side, side

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        """The family's tower."""
        raise NotImplementedError


class Attention(nn.Module):
    """Weights of multi-head self-attention; one matrix gives queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)


class Mlp(nn.Module):
    """c_proj(act(c_fc(x))), with act GELU, its tanh form, or QuickGELU; 4·width inside by default."""

    def __init__(self, width: int, activation: str, hidden: int | None) -> None:
        super().__init__()
        self.quick = activation == "quick_gelu"
        self.approximate = "tanh" if activation == "gelu_tanh" else "none"
        self.c_fc = nn.Linear(width, hidden or 4 * width)
        self.c_proj = nn.Linear(hidden or 4 * width, width)

    def forward(self, x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        x = x.to(self.c_fc.weight.dtype)
        if not self.quick:
            return self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))
        flat = x.flatten(0, -2)
        weights = self.c_fc.weight, self.c_fc.bias, self.c_proj.weight, self.c_proj.bias
        return _QuickMlp.apply(flat, *weights).view(x.shape)  # type: ignore[no-untyped-call]


class _QuickMlp(torch.autograd.Function):
    """c_proj(h·sigmoid(q·h)), h = c_fc(x), with fixed weights.

    h·sigmoid(qh) = silu(qh)/q: with both factors inside the matrix products the activation is one operation
    that keeps one tensor, instead of three that keep two. In the backward pass the factors cancel:
    dx = ((dy·c_proj) ∘ silu′(qh))·c_fc.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, fc: Tensor, fc_bias: Tensor, proj: Tensor, proj_bias: Tensor) -> Tensor:
        hidden = torch.addmm(fc_bias * QUICK, x, fc.t(), alpha=QUICK)
        ctx.save_for_backward(hidden, fc, proj)
        return torch.addmm(proj_bias, F.silu(hidden), proj.t(), alpha=1 / QUICK)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        hidden, fc, proj = ctx.saved_tensors
        return torch.ops.aten.silu_backward(gradient @ proj, hidden) @ fc, None, None, None, None


class Block(nn.Module):
    """Pre-norm residual block: x + attention(ln_1(x)), then x + mlp(ln_2(x)).

    Split into `project` and `finish`, so that the text engine can put its own attention between.
    Matrix products run in the precision of their weights and everything else in that of x: see `rounding`.
    A `tap` is what a method does inside this block (`taps`). `ln_inner`, between attention and its output, is
    a norm in one family alone.
    """

    ln_inner: nn.Module

    def __init__(self, sizes: "PatchConfig | TextConfig", activation: str, eps: float = CLIP_EPS) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(sizes.width, eps)
        self.attn = Attention(sizes.width, sizes.heads)
        self.ln_2 = nn.LayerNorm(sizes.width, eps)
        self.mlp = Mlp(sizes.width, activation, sizes.hidden)
        self.ln_inner = nn.Identity()

    def project(
        self, x: Float[Tensor, "*n w"], tap: "Tap | None" = None, parts: str = "qkv"
    ) -> Float[Tensor, "*n k"]:
        """Queries, keys and values side by side, or those of them that are asked for."""
        width, first = x.shape[-1], "qkv".index(parts)
        rows = slice(first * width, (first + len(parts)) * width)
        weight, bias = self.attn.in_proj_weight[rows], self.attn.in_proj_bias[rows]
        normed = self.ln_1(x).to(weight.dtype)
        projected = F.linear(normed, weight, bias).to(x.dtype)
        return projected if tap is None else tap.projected(parts, projected, normed)

    def finish(
        self, x: Float[Tensor, "*n w"], attended: Float[Tensor, "*n w"], tap: "Tap | None" = None
    ) -> Float[Tensor, "*n w"]:
        attended = self.ln_inner(attended.to(self.attn.out_proj.weight.dtype))
        out = self.attn.out_proj(attended)
        x = x + (out if tap is None else tap.projected("o", out, attended))
        x = x + self.mlp(self.ln_2(x))
        return x if tap is None else tap.after(x)

    def forward(self, x: Float[Tensor, "n l w"], causal: bool) -> Float[Tensor, "n l w"]:
        return self.finish(x, attend(self.project(x), self.attn.heads, causal))


class Transformer(nn.Module):
    """A stack of blocks."""

    def __init__(self, sizes: "PatchConfig | TextConfig", activation: str, eps: float = CLIP_EPS) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(sizes, activation, eps) for _ in range(sizes.layers))

    @property
    def blocks(self) -> list[Block]:
        return cast(list[Block], list(self.resblocks))


class BlockTower(nn.Module):
    """An image tower whose middle is a stack of blocks, into which taps can reach.

    image ──enter──▶ tokens ──through──▶ tokens ──leave──▶ one vector, and one a patch

    The tokens are the patches, behind a class token where there is one, with learned positions added where
    there are any, and normed by what a family puts in the place of `ln_pre`. Where there are `turns`, cosines
    and sines [2, l, e], queries and keys are turned by them; a method's tokens have no place and stay.
    """

    ln_post: nn.LayerNorm
    turns: Tensor | None
    halves = False  # a pair of channels that is turned: neighbours, or half a head apart
    before = 1  # rows of `joint` before the patches: the image's first

    def __init__(
        self, config: PatchConfig, *, bias: bool = True, class_token: bool = True, positions: bool = True
    ) -> None:
        super().__init__()
        width, size = config.width, config.patch_size
        tokens = config.grid[0] * config.grid[1] + class_token
        self.conv1 = nn.Conv2d(3, width, kernel_size=size, stride=size, bias=bias)
        self.class_embedding = nn.Parameter(torch.empty(width)) if class_token else None
        self.positional_embedding = nn.Parameter(torch.empty(tokens, width)) if positions else None
        self.ln_pre: nn.Module = nn.Identity()
        self.register_buffer("turns", None, persistent=False)

    @property
    def stack(self) -> list[Block]:
        own: Any = self
        return own.transformer.blocks if hasattr(self, "transformer") else list(own.blocks)

    def enter(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b l k"]:
        tokens = self.conv1(x).flatten(2).transpose(1, 2)
        if self.class_embedding is not None:
            first = self.class_embedding.expand(x.shape[0], 1, -1)  # len() would fix the batch of an export
            tokens = torch.cat([first, tokens], dim=1)
        if self.positional_embedding is not None:
            tokens = tokens + self.positional_embedding
        return self.ln_pre(tokens)

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b n d"]:
        """The image's vector and those of the patches, from the tokens behind the last norm."""
        raise NotImplementedError

    def leave(self, tokens: Float[Tensor, "b l w"]) -> Seen:
        rows = self.joint(self.ln_post(tokens))
        return rows[:, 0], rows[:, self.before :]

    def through(
        self,
        tokens: Float[Tensor, "b l w"],
        taps: "Taps | None" = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Float[Tensor, "b lk w"]:
        """From before block `start` to before block `stop`. A tap's tokens are behind the image's own, in the
        place of those of an earlier block."""
        own = tokens.shape[1]
        for layer in range(len(self.stack))[start:stop]:
            block, tap = self.stack[layer], taps.at(layer) if taps is not None else None
            added = tap.tokens() if tap is not None else None
            if added is not None:
                added = added.to(tokens.dtype)
                if layer == 0 and not (taps and taps.inserted):  # as the image's own come into the first
                    added = self.ln_pre(added)
                tokens = torch.cat([tokens[:, :own], added.expand(tokens.shape[0], -1, -1)], dim=1)
            attended = attend(block.project(tokens, tap), block.attn.heads, turn=self._turned)
            tokens = block.finish(tokens, attended, tap)
        return tokens

    def _turned(self, x: Float[Tensor, "b h l e"]) -> Float[Tensor, "b h l e"]:
        """Queries or keys, each pair of channels turned by its token's angle."""
        if self.turns is None:
            return x
        more = (0, 0, 0, x.shape[2] - self.turns.shape[1])
        cosines, sines = F.pad(self.turns[0], more, value=1.0), F.pad(self.turns[1], more)
        shape, pair = ((2, -1), -2) if self.halves else ((-1, 2), -1)
        one, other = x.unflatten(-1, shape).unbind(pair)
        return x * cosines + torch.stack([-other, one], pair).flatten(-2) * sines

    def forward(self, x: Float[Tensor, "b c h w"]) -> Seen:
        return self.leave(self.through(self.enter(x)))


def attend(
    qkv: Float[Tensor, "n l w3"],
    heads: int,
    causal: bool = False,
    turn: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, "n l w"]:
    """Plain attention of every token to every token, or to those before it."""
    q, k, v = (split_heads(part, heads) for part in qkv.chunk(3, dim=-1))
    return merge_heads(F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=causal))


def split_heads(x: Float[Tensor, "n l w"], heads: int) -> Float[Tensor, "n h l e"]:
    """[n, l, h·e] -> [n, h, l, e]."""
    n, length, width = x.shape
    return x.view(n, length, heads, width // heads).transpose(1, 2)


def merge_heads(x: Float[Tensor, "n h l e"]) -> Float[Tensor, "n l w"]:
    """[n, h, l, e] -> [n, l, h·e]."""
    n, heads, length, per_head = x.shape
    return x.transpose(1, 2).reshape(n, length, heads * per_head)
