"""The Triton kernels of `frozen_blocks`: attention, and what is between the matrix products."""

# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def _line(table, row, stop):
    """A line of the table of rows; one past the end has no queries and no keys."""
    here = row < stop
    q_first = tl.load(table + row * 5, mask=here, other=0)
    queries = tl.load(table + row * 5 + 1, mask=here, other=0)
    k_first = tl.load(table + row * 5 + 2, mask=here, other=0)
    keys = tl.load(table + row * 5 + 3, mask=here, other=0)
    lead = tl.load(table + row * 5 + 4, mask=here, other=0)
    return q_first, queries, k_first, keys, lead


@triton.jit
def _places(k_first, lead, KEYS: tl.constexpr):
    """Where the keys of a row are: first those of the lead, then its own."""
    j = tl.arange(0, KEYS)
    return tl.where(j < lead, j, k_first + j - lead)


@triton.jit
def _tile_at(base, places, there, stride, PER_HEAD: tl.constexpr):
    """The rows at `places` of one head as a tile, zeros where nothing is there."""
    along = tl.arange(0, PER_HEAD)
    return tl.load(base + places[:, None] * stride + along[None, :], mask=there[:, None], other=0.0)


@triton.jit
def _put(base, places, there, stride, value, PER_HEAD: tl.constexpr):
    along = tl.arange(0, PER_HEAD)
    where = base + places[:, None] * stride + along[None, :]
    tl.store(where, value.to(base.dtype.element_ty), mask=there[:, None])


@triton.jit
def _probabilities(q, k, queries, keys, lead, scale, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Softmax over the lead and the row's own keys; query i sees its keys up to keys − queries + i."""
    i = tl.arange(0, QUERIES)[:, None]
    j = tl.arange(0, KEYS)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(j <= i + lead + keys - queries, scores, -1.0e30)
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return scores / tl.sum(scores, axis=1)[:, None]


@triton.jit
def forward_kernel(
    q, k, v, out, table, first, scale,
    q_sample, q_row, k_sample, k_row, out_sample, out_row,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    row, head, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q += sample * q_sample + head * PER_HEAD
    k += sample * k_sample + head * PER_HEAD
    v += sample * k_sample + head * PER_HEAD
    out += sample * out_sample + head * PER_HEAD
    i, j = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    q_first, queries, k_first, keys, lead = _line(table, first + row, first + row + 1)
    places, there = _places(k_first, lead, KEYS), j < lead + keys
    q_tile = _tile_at(q, q_first + i, i < queries, q_row, PER_HEAD)
    k_tile = _tile_at(k, places, there, k_row, PER_HEAD)
    v_tile = _tile_at(v, places, there, k_row, PER_HEAD)
    p = _probabilities(q_tile, k_tile, queries, keys, lead, scale, QUERIES, KEYS)
    result = tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
    _put(out, q_first + i, i < queries, out_row, result, PER_HEAD)


@triton.jit
def backward_kernel(
    q, k, v, gradient, dq, dk, dv, partial, table, first, stop, before_blocks, blocks, lead_length, scale,
    q_sample, q_row, k_sample, k_row, g_sample, g_row, dq_sample, dq_row, dk_sample, dk_row,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PER_HEAD: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, LEARNS: tl.constexpr,
):  # fmt: skip
    block, head, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q += sample * q_sample + head * PER_HEAD
    k += sample * k_sample + head * PER_HEAD
    v += sample * k_sample + head * PER_HEAD
    gradient += sample * g_sample + head * PER_HEAD
    dq += sample * dq_sample + head * PER_HEAD
    dk += sample * dk_sample + head * PER_HEAD
    dv += sample * dk_sample + head * PER_HEAD
    i, j = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    lead_dk = tl.zeros((KEYS, PER_HEAD), dtype=tl.float32)
    lead_dv = tl.zeros((KEYS, PER_HEAD), dtype=tl.float32)
    for turn in range(ROWS):
        q_first, queries, k_first, keys, lead = _line(table, first + block * ROWS + turn, stop)
        places, there = _places(k_first, lead, KEYS), j < lead + keys
        q_tile = _tile_at(q, q_first + i, i < queries, q_row, PER_HEAD)
        k_tile = _tile_at(k, places, there, k_row, PER_HEAD)
        v_tile = _tile_at(v, places, there, k_row, PER_HEAD)
        do = _tile_at(gradient, q_first + i, i < queries, g_row, PER_HEAD)
        p = _probabilities(q_tile, k_tile, queries, keys, lead, scale, QUERIES, KEYS)
        # dV = Pᵀ dO; dS = P ∘ (dO Vᵀ − Σ_j P ∘ dO Vᵀ); dQ = dS K; dK = dSᵀ Q
        dp = tl.dot(do, tl.trans(v_tile), input_precision="ieee")
        ds = (p * (dp - tl.sum(p * dp, axis=1)[:, None]) * scale).to(q_tile.dtype)
        dq_tile = tl.dot(ds, k_tile, input_precision="ieee")
        dk_tile = tl.dot(tl.trans(ds), q_tile, input_precision="ieee")
        dv_tile = tl.dot(tl.trans(p.to(q_tile.dtype)), do, input_precision="ieee")
        own = there & (j >= lead)
        _put(dq, q_first + i, i < queries, dq_row, dq_tile, PER_HEAD)
        _put(dk, places, own, dk_row, dk_tile, PER_HEAD)
        _put(dv, places, own, dk_row, dv_tile, PER_HEAD)
        if LEARNS:
            lead_dk += tl.where((j < lead)[:, None], dk_tile, 0.0)
            lead_dv += tl.where((j < lead)[:, None], dv_tile, 0.0)
    if LEARNS:
        partial += ((sample * blocks + before_blocks + block) * lead_length) * 2 * WIDTH + head * PER_HEAD
        _put(partial, j, j < lead_length, 2 * WIDTH, lead_dk, PER_HEAD)
        _put(partial + WIDTH, j, j < lead_length, 2 * WIDTH, lead_dv, PER_HEAD)


@triton.jit
def lead_kernel(
    partial, result, blocks, lead_length, r_sample, r_row,
    COLUMNS: tl.constexpr, SOME: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Add what the programs found of the lead's keys and values to its rows of the result."""
    part, row, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = part * ACROSS + tl.arange(0, ACROSS)
    inside = columns < COLUMNS
    total = tl.zeros((ACROSS,), dtype=tl.float32)
    for start in range(0, blocks, SOME):
        some = start + tl.arange(0, SOME)
        at = ((sample * blocks + some) * lead_length + row)[:, None] * COLUMNS + columns[None, :]
        total += tl.sum(tl.load(partial + at, mask=(some < blocks)[:, None] & inside[None, :], other=0.0), 0)
    to = result + sample * r_sample + row * r_row + columns
    tl.store(to, (tl.load(to, mask=inside) + total).to(result.dtype.element_ty), mask=inside)


@triton.jit
def norm_kernel(
    x, delta, weight, bias, total, normed, rows, eps,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """total = x + delta; normed = weight · (total − mean)/std + bias, row by row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0) + tl.load(delta + at, mask=inside, other=0.0)
    tl.store(total + at, value, mask=inside)
    value = value.to(tl.float32)
    centred = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)[:, None]
    own = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    result = centred * scale * own[None, :] + shift[None, :]
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    gradient, x, weight, residual, out, rows, eps,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out = residual + (g − mean(g) − x̂·mean(g·x̂))/std, with x̂ = (x − mean)/std and g = weight · gradient."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)[:, None]
    centred *= scale
    own = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * own[None, :]
    along = (tl.sum(g * centred, axis=1) / WIDTH)[:, None]
    result = scale * (g - (tl.sum(g, axis=1) / WIDTH)[:, None] - centred * along)
    result += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quick_gelu_kernel(x, out, count, quick, TILE: tl.constexpr):
    """x·sigmoid(quick·x)."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    result = value * tl.sigmoid(quick * value)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def quick_gelu_backward_kernel(gradient, x, out, count, quick, TILE: tl.constexpr):
    """gradient · (s + quick·x·s·(1 − s)), s = sigmoid(quick·x)."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=at < count, other=0.0).to(tl.float32)
    s = tl.sigmoid(quick * value)
    result = g * (s + quick * value * s * (1 - s))
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < count)
