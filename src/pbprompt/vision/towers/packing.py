"""Where each token of a list of prompts goes, so that nothing needless is computed.

All prompts of one sample lie in one packed list of tokens: first the lead (the leading positions that every
prompt shares, computed once), then each prompt's tail (what follows the lead, up to EOT), shortest first.

Every tail attends to the lead and, causally, to itself: one call of scaled dot-product attention for each
length of tail. On CUDA, where library kernels idle on thousands of tiny attentions, `frozen_blocks` has one
Triton kernel for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.layers import merge_heads, split_heads
from pbprompt.vision.towers.prompts import Prompt

SMALLEST_TILE = 16  # rows or columns that a GPU's matrix units take


@dataclass(frozen=True, eq=False)
class Rows:
    """Which queries meet which keys: a line a tail, and launches that cover the lines by size of tile."""

    table: Tensor  # [r, 5] int32: first query, queries, first key, keys, positions of the lead to attend to
    launches: tuple[tuple[int, int, int, int], ...]  # (first line, lines, tile of queries, tile of keys)
    lead: int
    lead_learns: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """One chunk of prompts, packed."""

    constant: Tensor  # [n, w] token and position embeddings; position alone at slots
    slot_at: Tensor  # [k] the packed positions that are slots
    slot_from: Tensor  # [k] which context vector goes there, counted over [classes, b]
    slot_back: Tensor | None  # [classes·b] the inverse of `slot_from`, where that has each vector once
    lead: int  # how many positions the lead has
    lead_learns: bool  # whether one of them is a slot; if not, nothing asks for the lead's gradient
    starts: Tensor  # [r] where each tail starts
    eot: Tensor  # [r] where each tail's EOT is
    groups: tuple[tuple[int, int], ...]  # runs of equal tails: (how many, length), in packed order

    @cached_property
    def sizes(self) -> list[int]:
        """Positions of the lead and of each group."""
        return [self.lead, *(count * length for count, length in self.groups)]

    @cached_property
    def causal_masks(self) -> list[Tensor]:
        """For each group, which of the lead's and of its own positions each position sees: [t, l + t]."""
        device = self.constant.device
        return [
            torch.ones(length, self.lead + length, dtype=torch.bool, device=device).tril(self.lead)
            for _, length in self.groups
        ]

    @cached_property
    def eot_masks(self) -> list[Tensor]:
        """For each group, what each EOT sees: [r, 1, 1, l + t]; without packing there is more behind it."""
        reach = (self.eot - self.starts + 1 + self.lead).split([count for count, _ in self.groups])
        return [
            torch.arange(self.lead + length, device=own.device) < own.view(-1, 1, 1, 1)
            for own, (_, length) in zip(reach, self.groups, strict=True)
        ]

    @cached_property
    def causal_rows(self) -> Rows:
        """Every position asks its own tail up to itself; the lead asks itself."""
        lengths = [length for count, length in self.groups for _ in range(count)]
        tails = zip(self.starts.tolist(), lengths, strict=True)
        lines = [(start, length, start, length, self.lead) for start, length in tails]
        if self.lead:
            lines.append((0, self.lead, 0, self.lead, 0))
        return self._rows(lines)

    @cached_property
    def eot_rows(self) -> Rows:
        """EOT alone asks its own tail."""
        tails = zip(self.starts.tolist(), self.eot.tolist(), strict=True)
        return self._rows(
            [(row, 1, start, eot - start + 1, self.lead) for row, (start, eot) in enumerate(tails)]
        )

    def _rows(self, lines: list[tuple[int, int, int, int, int]]) -> Rows:
        def tiles(line: tuple[int, int, int, int, int]) -> tuple[int, int]:
            _, queries, _, keys, lead = line
            return tile_of(queries), tile_of(lead + keys)

        lines.sort(key=tiles)
        launches, first = [], 0
        for (queries, keys), run in groupby(lines, key=tiles):
            count = len(list(run))
            launches.append((first, count, queries, keys))
            first += count
        table = torch.tensor(lines, dtype=torch.int32, device=self.constant.device)
        return Rows(table, tuple(launches), self.lead, self.lead_learns)


def build_layouts(
    backbone: Backbone,
    prompts: Sequence[Prompt],
    order: Sequence[int],
    *,
    lead: int,
    padded_to: int | None,
    chunk_tokens: int,
) -> list[Layout]:
    """Lay prompts out in `order` (ascending length), cut into chunks of about `chunk_tokens` tail tokens.

    `padded_to` computes every prompt at that length; None computes none past its EOT.
    """
    lengths = [(padded_to or len(prompts[c])) - lead for c in order]
    return [
        _layout(backbone, prompts, order[start:stop], lead, lengths[start:stop])
        for start, stop in _chunk_bounds(lengths, chunk_tokens)
    ]


def with_slots(layout: Layout, states: Tensor, count: int) -> Layout:
    """A layout without slots, with so many behind the first position of its lead, or of each tail where there
    is none. `states`, [n, w], are its positions' in the place of embeddings; at slots they are zero."""
    (n, width), lead = states.shape, layout.lead
    hosts = layout.starts.new_zeros(1) if lead else layout.starts
    before = torch.searchsorted(hosts, torch.arange(n, device=hosts.device))  # how many hosts
    moved = torch.arange(n, device=hosts.device) + count * before
    longer = 0 if lead else count
    return replace(
        layout,
        constant=states.new_zeros(n + count * len(hosts), width).index_copy(0, moved, states),
        slot_at=(moved[hosts].unsqueeze(1) + 1 + torch.arange(count, device=hosts.device)).flatten(),
        slot_from=torch.arange(count, device=hosts.device).repeat(len(hosts)),
        lead=lead + count if lead else 0,
        lead_learns=lead > 0,
        starts=moved[layout.starts],
        eot=moved[layout.eot],
        groups=tuple((many, length + longer) for many, length in layout.groups),
    )


def tile_of(length: int) -> int:
    """The smallest tile that holds `length` positions."""
    return max(SMALLEST_TILE, 1 << (length - 1).bit_length())


def count_slots(prompts: Sequence[Prompt]) -> int:
    """How many context vectors the prompts take."""
    return max(sum(token < 0 for token in prompt) for prompt in prompts)


def _chunk_bounds(lengths: Sequence[int], chunk_tokens: int) -> list[tuple[int, int]]:
    starts, used = [0], 0
    for at, length in enumerate(lengths):
        if used and used + length > chunk_tokens:
            starts.append(at)
            used = 0
        used += length
    return list(zip(starts, [*starts[1:], len(lengths)], strict=True))


@torch.no_grad()
def _layout(
    backbone: Backbone, prompts: Sequence[Prompt], classes: Sequence[int], lead: int, lengths: Sequence[int]
) -> Layout:
    slots = count_slots(prompts)
    tokens = [(token, at, classes[0]) for at, token in enumerate(prompts[classes[0]][:lead])]
    starts, eot = [], []
    for c, length in zip(classes, lengths, strict=True):
        tail = prompts[c][lead:]
        starts.append(len(tokens))
        eot.append(len(tokens) + len(tail) - 1)
        padded = tail + [0] * (length - len(tail))
        tokens += [(token, lead + at, c) for at, token in enumerate(padded)]

    def long(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=backbone.device)

    places = [c * slots - token - 1 for token, _, c in tokens if token < 0]
    each_once = sorted(places) == list(range(len(prompts) * slots))
    ids, positions = long([token for token, _, _ in tokens]), long([at for _, at, _ in tokens])
    embedded = backbone.token_embedding(ids.clamp(min=0)).masked_fill((ids < 0).unsqueeze(-1), 0)
    return Layout(
        constant=embedded + backbone.textual.positional_embedding[positions],
        slot_at=long([at for at, (token, _, _) in enumerate(tokens) if token < 0]),
        slot_from=long(places),
        slot_back=long(places).argsort() if each_once else None,
        lead=lead,
        lead_learns=any(token < 0 for token, _, _ in tokens[:lead]),
        starts=long(starts),
        eot=long(eot),
        groups=tuple((len(list(run)), length) for length, run in groupby(lengths)),
    )


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
