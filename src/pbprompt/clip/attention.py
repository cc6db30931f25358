"""Attention over packed prompts: every tail attends to the shared lead and, causally, to itself.

Two ways to the same numbers: scaled dot-product attention, one call for each length of tail; and, on CUDA,
one Triton kernel for all (`packed_attention`), because library kernels idle on thousands of tiny attentions.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip import packed_attention
from pbprompt.clip.layers import merge_heads, split_heads
from pbprompt.clip.layout import Layout


def attend_causally(qkv: Float[Tensor, "s n w3"], layout: Layout, heads: int) -> Float[Tensor, "s n w"]:
    """What every packed position takes from the lead and from its own tail up to itself."""
    q, k, v = qkv.chunk(3, dim=-1)
    if packed_attention.usable(q, q.shape[-1] // heads):
        return packed_attention.attend_causally(qkv, layout, heads)
    out = []
    if layout.lead:
        ql, kl, vl = (split_heads(part[:, : layout.lead], heads) for part in (q, k, v))
        out.append(merge_heads(F.scaled_dot_product_attention(ql, kl, vl, is_causal=True)))
    at = layout.lead
    for count, length in layout.groups:
        tails = [_tails(part, at, count, length, heads) for part in (q, k, v)]
        k_all, v_all = (
            _with_lead(part, whole, layout.lead, heads) for part, whole in zip(tails[1:], (k, v), strict=True)
        )
        mask = torch.ones(length, k_all.shape[2], dtype=torch.bool, device=q.device).tril(layout.lead)
        attended = F.scaled_dot_product_attention(tails[0], k_all, v_all, attn_mask=mask)
        out.append(merge_heads(attended).view(len(q), count * length, -1))
        at += count * length
    return torch.cat(out, dim=1)


def attend_from_eot(
    q: Float[Tensor, "s r w"], kv: Float[Tensor, "s n w2"], layout: Layout, heads: int
) -> Float[Tensor, "s r w"]:
    """What every EOT takes from the lead and from its own tail."""
    if packed_attention.usable(q, q.shape[-1] // heads):
        return packed_attention.attend_from_eot(q, kv, layout, heads)
    k, v = kv.chunk(2, dim=-1)
    out = []
    at, row = layout.lead, 0
    for count, length in layout.groups:
        k_all, v_all = (
            _with_lead(_tails(part, at, count, length, heads), part, layout.lead, heads) for part in (k, v)
        )
        query = q[:, row : row + count].reshape(-1, heads, 1, k_all.shape[-1])
        # a prompt computed past its EOT (without packing) must not look there
        reach = (layout.eot - layout.starts)[row : row + count].repeat(len(q)) + 1 + layout.lead
        mask = torch.arange(k_all.shape[2], device=q.device) < reach.view(-1, 1, 1, 1)
        attended = F.scaled_dot_product_attention(query, k_all, v_all, attn_mask=mask)
        out.append(merge_heads(attended).view(len(q), count, -1))
        at += count * length
        row += count
    return torch.cat(out, dim=1)


def _tails(
    x: Float[Tensor, "s n w"], at: int, count: int, length: int, heads: int
) -> Float[Tensor, "sr h t e"]:
    """`count` tails of equal length from position `at` on, a row each."""
    return split_heads(x[:, at : at + count * length].reshape(-1, length, x.shape[-1]), heads)


def _with_lead(
    own: Float[Tensor, "sr h t e"], whole: Float[Tensor, "s n w"], lead: int, heads: int
) -> Float[Tensor, "sr h lt e"]:
    """Each row's keys (or values) after those of its sample's lead."""
    if not lead:
        return own
    shared = split_heads(whole[:, :lead], heads).unsqueeze(1)
    rows = shared.expand(-1, len(own) // len(whole), -1, -1, -1).flatten(0, 1)
    return torch.cat([rows, own], dim=2)
