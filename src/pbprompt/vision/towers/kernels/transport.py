"""Conditional transport on CUDA: one pass over the cosines there, one back.

`transport` has the equations. Written out in torch, each softmax and each product with a plan is a pass over
[s, b, m, c] cosines; here a kernel makes all sums that the costs need as it reads them once:

    D_m = Σ_c p_c e_mc,  N_m = Σ_c p_c e_mc s_mc,  E_c = Σ_m e_mc,  F_c = Σ_m e_mc s_mc,   e = exp((s − 1)/T)
    L_{u→g} = 1 − (1/M) Σ_m N_m / D_m,  L_{g→u} = Σ_c p_c (1 − F_c / E_c)

and another one the gradient at each cosine. A cosine is at most 1, so nothing overflows; nor does anything
vanish unless 1/T is large. The cosines come from the vectors as they are stored, divided by their norms
afterwards: products of half-precision numbers are exact on the tensor cores.
"""

# ruff: noqa: N803

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from pbprompt.vision.towers.kernels import float32_products
from pbprompt.vision.towers.kernels.elementwise import unit, vectors_and_norms

FEW = 256  # prompts: up to so many, narrow tiles keep the GPU busy
ALIGNED = 8  # prompts: what the tensor cores read at once


@triton.jit
def _cosines(products, image_norms, prompt_norms, rows, columns, inside, room):
    """A tile of cosines; `products` are those of vectors that are not normalised."""
    product = tl.load(products + rows[:, None] * room + columns[None, :], mask=inside, other=0.0)
    return product / (image_norms[:, None] * prompt_norms[None, :])


@triton.jit
def _sums(
    products, image_norms, prompt_norms, log_weights, per_patch, per_prompt, per_image,
    images, patches, classes, room, blocks, inverse,
    PATCHES: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """One image and a block of prompts: sums over its patches, and this block's share of those over prompts.

    Exponents are lowered by 1/T, the highest there is, which no plan notices.
    """
    block, image, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    which = sample * images + image
    columns = block * CLASSES + tl.arange(0, CLASSES)
    known = columns < classes
    weights = tl.exp(tl.load(log_weights + which * classes + columns, mask=known, other=-1e30))
    norms = tl.load(prompt_norms + sample * classes + columns, mask=known, other=1.0)
    products += which.to(tl.int64) * patches * room
    mass = tl.zeros((CLASSES,), dtype=tl.float32)
    gain = tl.zeros((CLASSES,), dtype=tl.float32)
    for first in range(0, patches, PATCHES):
        rows = first + tl.arange(0, PATCHES)
        there = rows < patches
        inside = there[:, None] & known[None, :]
        own = tl.load(image_norms + image * patches + rows, mask=there, other=1.0)
        cosine = _cosines(products, own, norms, rows, columns, inside, room)
        plan = tl.where(inside, tl.exp((cosine - 1) * inverse), 0.0)
        mass += tl.sum(plan, axis=0)
        gain += tl.sum(plan * cosine, axis=0)
        plan *= weights[None, :]
        at = per_patch + ((which * blocks + block) * 2) * patches + rows
        tl.store(at, tl.sum(plan, axis=1), mask=there)
        tl.store(at + patches, tl.sum(plan * cosine, axis=1), mask=there)
    at = per_prompt + (which * 2) * classes + columns
    tl.store(at, mass, mask=known)
    tl.store(at + classes, gain, mask=known)
    cost = tl.where(known, weights * (1 - gain / tl.where(known, mass, 1.0)), 0.0)
    tl.store(per_image + which * blocks + block, tl.sum(cost))


@triton.jit
def _finish(
    per_patch, per_image, plan_sums, costs, count, patches, blocks,
    PATCHES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One image: both directions' costs, and the sums over all prompts for each patch."""
    which = tl.program_id(0)
    rows = tl.arange(0, PATCHES)
    there = rows < patches
    mass = tl.zeros((PATCHES,), dtype=tl.float32)
    gain = tl.zeros((PATCHES,), dtype=tl.float32)
    for block in range(blocks):
        at = per_patch + ((which * blocks + block) * 2) * patches + rows
        mass += tl.load(at, mask=there, other=1.0)
        gain += tl.load(at + patches, mask=there, other=0.0)
    tl.store(plan_sums + (which * 2) * patches + rows, mass, mask=there)
    tl.store(plan_sums + (which * 2 + 1) * patches + rows, gain, mask=there)
    tl.store(costs + which, 1 - tl.sum(tl.where(there, gain / mass, 0.0)) / patches)
    total = tl.zeros((BLOCKS,), dtype=tl.float32)
    for first in range(0, blocks, BLOCKS):
        some = first + tl.arange(0, BLOCKS)
        total += tl.load(per_image + which * blocks + some, mask=some < blocks, other=0.0)
    tl.store(costs + count + which, tl.sum(total))


@triton.jit
def _gradient(
    products, image_norms, prompt_norms, log_weights, plan_sums, per_prompt, upstream, out, weights_out,
    images, count, patches, classes, room, inverse,
    PATCHES: tl.constexpr, CLASSES: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """One image and a block of prompts: the gradient at each cosine, divided by the norm of its patch.

    d/d s_mc = −p_c e_mc · { g₁/(M·D_m)·(1 + (s_mc − a_m)/T) + g₂/E_c·(1 + (s_mc − b_c)/T) }
    with e = exp((s − 1)/T), D_m and E_c the sums of the plans, a_m and b_c the mean cosines under them.
    """
    block, image, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    which = sample * images + image
    columns = block * CLASSES + tl.arange(0, CLASSES)
    known = columns < classes
    weights = tl.exp(tl.load(log_weights + which * classes + columns, mask=known, other=-1e30))
    norms = tl.load(prompt_norms + sample * classes + columns, mask=known, other=1.0)
    mass = tl.load(per_prompt + (which * 2) * classes + columns, mask=known, other=1.0)
    mean = tl.load(per_prompt + (which * 2 + 1) * classes + columns, mask=known, other=0.0) / mass
    to_prompts = tl.load(upstream + which) / patches
    to_patches = tl.load(upstream + count + which)
    products += which.to(tl.int64) * patches * room
    out += which.to(tl.int64) * patches * room
    at_weights = to_patches * weights * (1 - mean)
    for first in range(0, patches, PATCHES):
        rows = first + tl.arange(0, PATCHES)
        there = rows < patches
        inside = there[:, None] & known[None, :]
        own = tl.load(image_norms + image * patches + rows, mask=there, other=1.0)
        own_mass = tl.load(plan_sums + (which * 2) * patches + rows, mask=there, other=1.0)
        own_mean = tl.load(plan_sums + (which * 2 + 1) * patches + rows, mask=there, other=0.0) / own_mass
        cosine = _cosines(products, own, norms, rows, columns, inside, room)
        plan = weights[None, :] * tl.exp((cosine - 1) * inverse)
        here = cosine - own_mean[:, None]
        across = (to_prompts / own_mass)[:, None] * (1 + here * inverse)
        across += (to_patches / mass)[None, :] * (1 + (cosine - mean[None, :]) * inverse)
        at = out + rows[:, None] * room + columns[None, :]
        # past the last prompt the weights are zero, and so is what the matrix product will read there
        tl.store(at, -plan * across / own[:, None], mask=there[:, None] & (columns < room)[None, :])
        if WEIGHTS:
            share = tl.where(inside, plan * here * (to_prompts / own_mass)[:, None], 0.0)
            at_weights -= tl.sum(share, axis=0)
    if WEIGHTS:
        tl.store(weights_out + which * classes + columns, at_weights, mask=known)


def both_directions(
    patches: Float[Tensor, "b m d"],
    prompts: Float[Tensor, "*s c d"],
    log_weights: Float[Tensor, "*s b c"],
    temperature: float,
) -> tuple[Float[Tensor, "*s b"], Float[Tensor, "*s b"]]:
    """L_{u→g} and L_{g→u} of every sample and image; gradients reach the prompts and the weights."""
    flat = prompts.reshape(-1, *prompts.shape[-2:])
    weights = log_weights.float().reshape(len(flat), *log_weights.shape[-2:])
    costs = _Costs.apply(patches, flat.detach(), unit(flat), weights, 1 / temperature)  # type: ignore[no-untyped-call]
    across, back = costs.unflatten(1, log_weights.shape[:-1])
    return across, back


class _Costs(torch.autograd.Function):
    """[2, s·b] costs; the gradient goes to the unit vectors, the values come from those not normalised."""

    @staticmethod
    def forward(
        ctx: Any, patches: Tensor, prompts: Tensor, units: Tensor, log_weights: Tensor, inverse: float
    ) -> Tensor:
        samples, classes = prompts.shape[:2]
        images, count = patches.shape[:2]
        room = triton.cdiv(classes, ALIGNED) * ALIGNED
        (vectors,), image_norms = vectors_and_norms(patches.flatten(0, 1).unsqueeze(0))
        others, prompt_norms = vectors_and_norms(prompts, room)
        with float32_products(tensor_cores=max(patches.itemsize, prompts.itemsize) < 4):
            products = vectors @ others.mT
        log_weights = log_weights.contiguous()
        tile = _tile(classes)
        blocks, total = triton.cdiv(classes, tile["CLASSES"]), samples * images
        per_patch = products.new_empty(total, blocks, 2, count)
        per_prompt = products.new_empty(total, 2, classes)
        per_image = products.new_empty(total, blocks)
        _sums[blocks, images, samples](
            products, image_norms, prompt_norms, log_weights, per_patch, per_prompt, per_image,
            images, count, classes, room, blocks, inverse, **tile,
        )  # fmt: skip
        plan_sums, costs = products.new_empty(total, 2, count), products.new_empty(2, total)
        _finish[(total,)](
            per_patch, per_image, plan_sums, costs, total, count, blocks,
            PATCHES=triton.next_power_of_2(count), BLOCKS=32,
        )  # fmt: skip
        ctx.save_for_backward(
            products, vectors, image_norms, prompt_norms, log_weights, plan_sums, per_prompt
        )
        ctx.sizes = samples, images, count, classes, room, inverse
        return costs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, Tensor | None, None]:
        products, vectors, image_norms, prompt_norms, log_weights, plan_sums, per_prompt = ctx.saved_tensors
        samples, images, count, classes, room, inverse = ctx.sizes
        out, wanted = torch.empty_like(products), ctx.needs_input_grad[3]
        at_weights = torch.empty_like(log_weights) if wanted else log_weights
        tile = _tile(classes)
        _gradient[triton.cdiv(room, tile["CLASSES"]), images, samples](
            products, image_norms, prompt_norms, log_weights, plan_sums, per_prompt, gradient.contiguous(),
            out, at_weights, images, samples * images, count, classes, room, inverse,
            WEIGHTS=wanted, **tile,
        )  # fmt: skip
        at_units = (out.mT @ vectors)[:, :classes]
        return None, None, at_units, at_weights if wanted else None, None


def _tile(classes: int) -> dict[str, int]:
    return {"PATCHES": 128, "CLASSES": 16} if classes <= FEW else {"PATCHES": 32, "CLASSES": 32}
