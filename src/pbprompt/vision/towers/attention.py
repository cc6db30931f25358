"""Attention over packed prompts: every tail attends to the shared lead and, causally, to itself.

One call of scaled dot-product attention for each length of tail. On CUDA, where library kernels idle on
thousands of tiny attentions, `packed_attention` has one Triton kernel for all.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.vision.towers.layers import merge_heads, split_heads
from pbprompt.vision.towers.packing import Layout


def attend_packed(
    qkv: Float[Tensor, "s n w3"], layout: Layout, heads: int, causal: bool
) -> Float[Tensor, "s n w"]:
    """What every packed position takes from the lead and from its own tail: up to itself, or from all of it
    (there is no lead then, and all tails are of one length)."""
    # split, not slices: the gradient of a split is one concatenation, that of a slice a whole tensor of zeros
    lead, *groups = qkv.split(layout.sizes, dim=1)
    q, lead_k, lead_v = (split_heads(part, heads) for part in lead.chunk(3, dim=-1))
    out = []
    if layout.lead:
        out.append(merge_heads(F.scaled_dot_product_attention(q, lead_k, lead_v, is_causal=True)))
    masks = layout.causal_masks if causal else [None]
    for group, (_, length), mask in zip(groups, layout.groups, masks, strict=True):
        q, k, v = _tails(group, 3, length, heads)
        k, v = _after_lead(k, lead_k), _after_lead(v, lead_v)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out.append(merge_heads(attended).view(*group.shape[:2], -1))
    return torch.cat(out, dim=1)


def attend_from_eot(
    q: Float[Tensor, "s r w"], kv: Float[Tensor, "s n w2"], layout: Layout, heads: int
) -> Float[Tensor, "s r w"]:
    """What every EOT takes from the lead and from its own tail."""
    lead, *groups = kv.split(layout.sizes, dim=1)
    lead_k, lead_v = (split_heads(part, heads) for part in lead.chunk(2, dim=-1))
    queries = q.split([count for count, _ in layout.groups], dim=1)
    out = []
    for query, group, (_, length), mask in zip(queries, groups, layout.groups, layout.eot_masks, strict=True):
        k, v = _tails(group, 2, length, heads)
        k, v = _after_lead(k, lead_k), _after_lead(v, lead_v)
        by_head = query.reshape(-1, heads, 1, query.shape[-1] // heads)
        seen = mask.repeat(len(q), 1, 1, 1)
        attended = F.scaled_dot_product_attention(by_head, k, v, attn_mask=seen)
        out.append(merge_heads(attended).view(query.shape))
    return torch.cat(out, dim=1)


def _tails(
    group: Float[Tensor, "s rt wk"], parts: int, length: int, heads: int
) -> list[Float[Tensor, "sr h t e"]]:
    """The queries, keys or values of tails of equal length, a row each."""
    rows = group.reshape(-1, length, group.shape[-1])
    return [split_heads(part, heads) for part in rows.chunk(parts, dim=-1)]


def _after_lead(
    own: Float[Tensor, "sr h t e"], shared: Float[Tensor, "s h l e"]
) -> Float[Tensor, "sr h lt e"]:
    """Each row's keys (or values) after those of its sample's lead."""
    if not shared.shape[2]:
        return own
    rows = shared.unsqueeze(1).expand(-1, len(own) // len(shared), -1, -1, -1).flatten(0, 1)
    return torch.cat([rows, own], dim=2)
