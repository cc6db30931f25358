"""How far are an image's patches from the prompts (Eq. 5 to 8)?

    P = Σ_m (1/M) δ(u_m),  Q = Σ_c p_c δ(g_c)                                      (Eq. 5)
    L_CT    = L_{u→g} + L_{g→u}, or λ·L_{u→g} + (1 − λ)·L_{g→u}                    (Eq. 6; Eq. 12)
    L_{u→g} = (1/M) Σ_m Σ_c C(u_m, g_c) π(g_c | u_m),  π(g_c | u_m) ∝ p_c exp(u_m·g_c / T)         (Eq. 7)
    L_{g→u} = Σ_c p_c Σ_m C(g_c, u_m) π(u_m | g_c),    π(u_m | g_c) ∝ exp(u_m·g_c / T)             (Eq. 8)

| symbol     | name here            | meaning                                                   |
|------------|----------------------|-----------------------------------------------------------|
| u_m        | `patches`            | M patch features of every image, [b, m, d]                |
| g_c        | `prompts`            | text features, [*s, c, d]                                 |
| p_c        | `log_weights`        | log p(y = c | x) of Eq. 1, [*s, b, c]                     |
| C(u, g)    | 1 − cosine           | cost                                                      |
| u·g        | `plan`               | of the towers' outputs, or of these at length 1: cosines  |
| π(g_c|u_m) | `prompt_given_patch` | sums to one over the prompts                              |
| π(u_m|g_c) | `patch_given_prompt` | sums to one over the patches                              |
| λ          | `balance`            | share of the patch-to-prompt direction; None: the sum     |
| T          | `temperature`        | of the plans; none is written in the paper, so 1 there    |

Weights come as logarithms, so that a class whose probability underflows keeps a finite value and a
finite gradient. The largest tensors are [*s, b, m, c]: the cosines and the two plans are kept for the
backward pass, which holds about four more of that size for a moment. Images do not depend on one another, so
where that is too much they go a few at a time, and the backward pass computes each part again.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pbprompt.errors import InputError
from pbprompt.vision.similarity import at_least_float32, cosines
from pbprompt.vision.towers import kernels as gpu

CELLS_AT_ONCE = 1 << 26  # samples × images × patches × prompts: 256 MiB for each tensor
HIGHEST_COST = 2.0  # of 1 − cosine
SAFE_EXPONENT = 40.0  # exp(−40) and its sums are far from the smallest float32
CHECK_EVERY = 10  # Sinkhorn iterations between two looks at the tolerance: each makes a GPU wait
Plan = Literal["cosine", "product"]
Patches = Float[Tensor, "b m d"]
Prompts = Float[Tensor, "*s c d"]
Weights = Float[Tensor, "*s b c"]
Cells = Float[Tensor, "*s b m c"]  # one for each patch and prompt
Cost = Float[Tensor, "*s b"]


class Plans(NamedTuple):
    prompt_given_patch: Cells
    patch_given_prompt: Cells


class Transport(NamedTuple):
    patch_to_prompt: Cost
    prompt_to_patch: Cost
    total: Cost


def patch_cosines(patches: Patches, prompts: Prompts) -> Cells:
    """Cosine similarity of every patch of every image with every prompt."""
    return cosines(patches.flatten(0, 1), prompts).unflatten(-2, patches.shape[:2])


def plan_similarity(patches: Patches, prompts: Prompts, plan: Plan) -> Cells:
    """u_m·g_c of the plans' exponents: of vectors as the towers give them (`product`), or at length 1."""
    if plan == "cosine":
        return patch_cosines(patches, prompts)
    u, g = at_least_float32(patches), at_least_float32(prompts)
    with torch.autocast(u.device.type, enabled=False), gpu.float32_products(tensor_cores=False):
        return torch.einsum("bmd,...cd->...bmc", u, g)


def transport_plans(similarity: Cells, log_weights: Weights, temperature: float = 1.0) -> Plans:
    """Both conditional plans, from the cosines or the products of patches and prompts."""
    if not temperature > 0:
        raise InputError(f"transport temperature: {temperature} should be above 0")
    exponents = similarity / temperature
    return Plans((at_least_float32(log_weights).unsqueeze(-2) + exponents).softmax(-1), exponents.softmax(-2))


def conditional_transport(
    patches: Patches,
    prompts: Prompts,
    log_weights: Weights,
    balance: float | None = 0.5,
    temperature: float = 1.0,
    plan: Plan = "cosine",
) -> Transport:
    """L_CT and its two directions, for every sample and image; each direction lies in [0, 2].

    The gradient reaches the plans and p_c as well as the cost: detach `log_weights` to keep p_c out.
    """
    images, cells = len(patches), log_weights.numel() * patches.shape[1]
    if cells > CELLS_AT_ONCE and images > 1:
        at_once = max(1, images * CELLS_AT_ONCE // cells)
        again = partial(checkpoint, conditional_transport, use_reentrant=False, preserve_rng_state=False)
        parts = [
            again(some, prompts, weights, balance, temperature, plan)
            for some, weights in zip(patches.split(at_once), log_weights.split(at_once, dim=-2), strict=True)
        ]
        return Transport(*(torch.cat(values, dim=-1) for values in zip(*parts, strict=True)))
    safe = plan == "cosine" and SAFE_EXPONENT * temperature >= HIGHEST_COST
    if safe and gpu.takes(patches, prompts) and not patches.requires_grad:
        from pbprompt.vision.towers.kernels.transport import both_directions

        patch_to_prompt, prompt_to_patch = both_directions(patches, prompts, log_weights, temperature)
    else:
        similarity = patch_cosines(patches, prompts)
        exponents = similarity if plan == "cosine" else plan_similarity(patches, prompts, plan)
        to_prompts, to_patches = transport_plans(exponents, log_weights, temperature)
        weights = at_least_float32(log_weights).exp()
        # A plan sums to one, so the expected cost is one minus the expected cosine: no tensor of costs.
        patch_to_prompt = 1 - (to_prompts * similarity).sum(-1).mean(-1)
        prompt_to_patch = (weights * (1 - (to_patches * similarity).sum(-2))).sum(-1)
    there, back = (1.0, 1.0) if balance is None else (balance, 1 - balance)
    total = there * patch_to_prompt + back * prompt_to_patch
    return Transport(patch_to_prompt, prompt_to_patch, total)


@torch.no_grad()
def plan_entropy(
    patches: Patches, prompts: Prompts, temperature: float = 1.0, plan: Plan = "cosine"
) -> Float[Tensor, ""]:
    """H[π(u_m | g_c)] in nats, on average over samples, images and classes; ln M: it looks nowhere."""
    exponents = plan_similarity(patches, prompts, plan) / temperature
    return torch.special.entr(exponents.softmax(-2)).sum(-2).mean()


@torch.no_grad()
def sinkhorn(
    cost: Float[Tensor, "*n m c"],
    a: Float[Tensor, "*n m"],
    b: Float[Tensor, "*n c"],
    epsilon: float = 0.1,
    iterations: int = 100,
    tolerance: float | None = None,
    *,
    highest_cost: float = math.inf,
) -> Float[Tensor, "*n m c"]:
    """Entropic optimal transport plan between the weights a and b: argmin ⟨plan, cost⟩ − ε·H(plan).

    plan = diag(u)·exp(−cost/ε)·diag(v); u and v are scaled in turn until the rows sum to a and the columns
    to b. The columns sum to b exactly, the rows to a in the limit. With a tolerance it stops early, once no
    row is off by more: looked at every `CHECK_EVERY` iterations. The scaling is done in logarithms, so that
    a small ε does not underflow, unless costs are known to lie between 0 and a `highest_cost` for which it
    cannot: the same plan then takes a third of the operations. The plan is a constant to autograd.
    """
    if not (epsilon > 0 and iterations > 0):
        raise InputError(f"Sinkhorn: epsilon {epsilon} and iterations {iterations} should both be above 0")
    exponents = -at_least_float32(cost) / epsilon
    a, b = a.to(exponents.dtype), b.to(exponents.dtype)
    if highest_cost / epsilon <= SAFE_EXPONENT:
        kernel, v = exponents.exp(), torch.ones_like(b)
        for iteration in range(1, iterations + 1):
            u = a / (kernel @ v.unsqueeze(-1)).squeeze(-1)
            v = b / (kernel.mT @ u.unsqueeze(-1)).squeeze(-1)
            if tolerance is not None and iteration % CHECK_EVERY == 0:
                row_sums = u * (kernel @ v.unsqueeze(-1)).squeeze(-1)
                if (row_sums - a).abs().max() <= tolerance:
                    break
        return u.unsqueeze(-1) * kernel * v.unsqueeze(-2)
    tiny = torch.finfo(exponents.dtype).tiny  # a weight of zero has no logarithm
    log_a, log_b = (weights.clamp_min(tiny).log() for weights in (a, b))
    columns = torch.zeros_like(log_b)
    for iteration in range(1, iterations + 1):
        rows = log_a - (exponents + columns.unsqueeze(-2)).logsumexp(-1)
        columns = log_b - (exponents + rows.unsqueeze(-1)).logsumexp(-2)
        if tolerance is not None and iteration % CHECK_EVERY == 0:
            row_sums = (rows.unsqueeze(-1) + exponents + columns.unsqueeze(-2)).logsumexp(-1).exp()
            if (row_sums - a).abs().max() <= tolerance:
                break
    return (rows.unsqueeze(-1) + exponents + columns.unsqueeze(-2)).exp()


def entropic_transport(
    patches: Patches, prompts: Prompts, log_weights: Weights, epsilon: float = 0.1, iterations: int = 100
) -> Cost:
    """⟨plan, cost⟩ between P and Q of Eq. 5 under the Sinkhorn plan: the OT variant of L_CT.

    The plan is held fixed, so the gradient reaches the prompts through the cost alone, and p_c not at all.
    """
    cost = 1 - patch_cosines(patches, prompts)
    uniform = cost.new_full(cost.shape[:-1], 1 / cost.shape[-2])
    weights = at_least_float32(log_weights).exp()
    plan = sinkhorn(cost, uniform, weights, epsilon, iterations, highest_cost=HIGHEST_COST)
    return (plan * cost).sum((-2, -1))
