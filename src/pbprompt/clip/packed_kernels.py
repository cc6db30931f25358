"""The Triton kernels behind `packed_attention`; its docstring says what they compute."""

# mypy: disallow_untyped_defs=False
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def _tile_of(base, first, count, stride, TILE: tl.constexpr, PER_HEAD: tl.constexpr):
    """Rows first..first+count of one head as a [TILE, PER_HEAD] tile, zeros past the end."""
    at = tl.arange(0, TILE)
    along = tl.arange(0, PER_HEAD)
    return tl.load(
        base + (first + at)[:, None] * stride + along[None, :], mask=(at < count)[:, None], other=0.0
    )


@triton.jit
def _put(base, first, count, stride, value, TILE: tl.constexpr, PER_HEAD: tl.constexpr):
    at = tl.arange(0, TILE)
    along = tl.arange(0, PER_HEAD)
    where = base + (first + at)[:, None] * stride + along[None, :]
    tl.store(where, value.to(base.dtype.element_ty), mask=(at < count)[:, None])


@triton.jit
def _probabilities(q, k, lead_k, queries, keys, lead, scale, TILE: tl.constexpr, LEAD: tl.constexpr):
    """Softmax over the lead and the row's own keys; query i sees its keys up to keys − queries + i."""
    i = tl.arange(0, TILE)[:, None]
    own = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    j = tl.arange(0, TILE)[None, :]
    own = tl.where((j < keys) & (j <= i + keys - queries), own, -1.0e30)
    before = tl.dot(q, tl.trans(lead_k), input_precision="ieee") * scale
    before = tl.where(tl.arange(0, LEAD)[None, :] < lead, before, -1.0e30)
    top = tl.maximum(tl.max(own, axis=1), tl.max(before, axis=1))[:, None]
    own, before = tl.exp(own - top), tl.exp(before - top)
    total = (tl.sum(own, axis=1) + tl.sum(before, axis=1))[:, None]
    return own / total, before / total


@triton.jit
def forward_kernel(
    q, k, v, out, table, first, stop, scale,
    q_sample, q_row, k_sample, k_row, out_sample, out_row,
    TILE: tl.constexpr, LEAD: tl.constexpr, PER_HEAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    block, head, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q += sample * q_sample + head * PER_HEAD
    k += sample * k_sample + head * PER_HEAD
    v += sample * k_sample + head * PER_HEAD
    out += sample * out_sample + head * PER_HEAD
    for turn in range(ROWS):
        row = first + block * ROWS + turn
        here = row < stop
        q_first = tl.load(table + row * 5, mask=here, other=0)
        queries = tl.load(table + row * 5 + 1, mask=here, other=0)
        k_first = tl.load(table + row * 5 + 2, mask=here, other=0)
        keys = tl.load(table + row * 5 + 3, mask=here, other=0)
        lead = tl.load(table + row * 5 + 4, mask=here, other=0)
        lead_k = _tile_of(k, 0, lead, k_row, LEAD, PER_HEAD)
        lead_v = _tile_of(v, 0, lead, k_row, LEAD, PER_HEAD)
        q_tile = _tile_of(q, q_first, queries, q_row, TILE, PER_HEAD)
        k_tile = _tile_of(k, k_first, keys, k_row, TILE, PER_HEAD)
        v_tile = _tile_of(v, k_first, keys, k_row, TILE, PER_HEAD)
        own, before = _probabilities(q_tile, k_tile, lead_k, queries, keys, lead, scale, TILE, LEAD)
        result = tl.dot(own.to(v_tile.dtype), v_tile, input_precision="ieee")
        result += tl.dot(before.to(v_tile.dtype), lead_v, input_precision="ieee")
        _put(out, q_first, queries, out_row, result, TILE, PER_HEAD)


@triton.jit
def backward_kernel(
    q, k, v, gradient, dq, dk, dv, partial, table, first, stop, before_blocks, blocks, lead_length, scale,
    q_sample, q_row, k_sample, k_row, g_sample, g_row, dq_sample, dq_row, dk_sample, dk_row,
    TILE: tl.constexpr, LEAD: tl.constexpr, PER_HEAD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    block, head, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q += sample * q_sample + head * PER_HEAD
    k += sample * k_sample + head * PER_HEAD
    v += sample * k_sample + head * PER_HEAD
    gradient += sample * g_sample + head * PER_HEAD
    dq += sample * dq_sample + head * PER_HEAD
    dk += sample * dk_sample + head * PER_HEAD
    dv += sample * dk_sample + head * PER_HEAD
    lead_dk = tl.zeros((LEAD, PER_HEAD), dtype=tl.float32)
    lead_dv = tl.zeros((LEAD, PER_HEAD), dtype=tl.float32)
    for turn in range(ROWS):
        row = first + block * ROWS + turn
        here = row < stop
        q_first = tl.load(table + row * 5, mask=here, other=0)
        queries = tl.load(table + row * 5 + 1, mask=here, other=0)
        k_first = tl.load(table + row * 5 + 2, mask=here, other=0)
        keys = tl.load(table + row * 5 + 3, mask=here, other=0)
        lead = tl.load(table + row * 5 + 4, mask=here, other=0)
        lead_k = _tile_of(k, 0, lead, k_row, LEAD, PER_HEAD)
        lead_v = _tile_of(v, 0, lead, k_row, LEAD, PER_HEAD)
        q_tile = _tile_of(q, q_first, queries, q_row, TILE, PER_HEAD)
        k_tile = _tile_of(k, k_first, keys, k_row, TILE, PER_HEAD)
        v_tile = _tile_of(v, k_first, keys, k_row, TILE, PER_HEAD)
        do = _tile_of(gradient, q_first, queries, g_row, TILE, PER_HEAD)
        own, before = _probabilities(q_tile, k_tile, lead_k, queries, keys, lead, scale, TILE, LEAD)
        # dV = Pᵀ dO; dS = P ∘ (dO Vᵀ − Σ_j P ∘ dO Vᵀ); dQ = dS K; dK = dSᵀ Q
        d_own = tl.dot(do, tl.trans(v_tile), input_precision="ieee")
        d_before = tl.dot(do, tl.trans(lead_v), input_precision="ieee")
        mean = (tl.sum(own * d_own, axis=1) + tl.sum(before * d_before, axis=1))[:, None]
        kind = q_tile.dtype
        s_own = (own * (d_own - mean) * scale).to(kind)
        s_before = (before * (d_before - mean) * scale).to(kind)
        dq_tile = tl.dot(s_own, k_tile, input_precision="ieee")
        dq_tile += tl.dot(s_before, lead_k, input_precision="ieee")
        dk_tile = tl.dot(tl.trans(s_own), q_tile, input_precision="ieee")
        dv_tile = tl.dot(tl.trans(own.to(kind)), do, input_precision="ieee")
        lead_dk += tl.dot(tl.trans(s_before), q_tile, input_precision="ieee")
        lead_dv += tl.dot(tl.trans(before.to(kind)), do, input_precision="ieee")
        _put(dq, q_first, queries, dq_row, dq_tile, TILE, PER_HEAD)
        _put(dk, k_first, keys, dk_row, dk_tile, TILE, PER_HEAD)
        _put(dv, k_first, keys, dk_row, dv_tile, TILE, PER_HEAD)
    partial += ((sample * blocks + before_blocks + block) * lead_length) * 2 * WIDTH + head * PER_HEAD
    _put(partial, 0, lead_length, 2 * WIDTH, lead_dk, LEAD, PER_HEAD)
    _put(partial + WIDTH, 0, lead_length, 2 * WIDTH, lead_dv, LEAD, PER_HEAD)
