"""Eq. 5 to 8 against loops, their limits, and Sinkhorn against a linear programme."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from pbprompt.errors import InputError
from pbprompt.prompts.pbprompt.transport import (
    conditional_transport,
    entropic_transport,
    patch_cosines,
    sinkhorn,
    transport_plans,
)

S, B, M, C, D = 2, 3, 5, 4, 6


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def problem(samples=S, images=B, patches=M, classes=C, width=D, dtype=torch.float64):
    """Patches, prompts and log p(y | x)."""
    log_weights = (2 * random(samples, images, classes, seed=2)).log_softmax(-1)
    return (
        random(images, patches, width, dtype=dtype),
        random(samples, classes, width, seed=1, dtype=dtype),
        log_weights.to(dtype),
    )


def by_loops(patches, prompts, log_weights, temperature):
    """Both directions and both plans, one number at a time."""
    u, g, p = patches.numpy(), prompts.numpy(), np.exp(log_weights.numpy())
    (n_s, n_c), (n_b, n_m) = g.shape[:2], u.shape[:2]
    there, back = np.zeros((n_s, n_b)), np.zeros((n_s, n_b))
    to_prompt, to_patch = np.zeros((n_s, n_b, n_m, n_c)), np.zeros((n_s, n_b, n_m, n_c))
    for s in range(n_s):
        for b in range(n_b):

            def cosine(m, c, s=s, b=b):
                return u[b, m] @ g[s, c] / (np.linalg.norm(u[b, m]) * np.linalg.norm(g[s, c]))

            for m in range(n_m):
                terms = [p[s, b, c] * math.exp(cosine(m, c) / temperature) for c in range(n_c)]
                for c in range(n_c):
                    to_prompt[s, b, m, c] = terms[c] / sum(terms)
                    there[s, b] += (1 - cosine(m, c)) * to_prompt[s, b, m, c] / n_m
            for c in range(n_c):
                terms = [math.exp(cosine(m, c) / temperature) for m in range(n_m)]
                for m in range(n_m):
                    to_patch[s, b, m, c] = terms[m] / sum(terms)
                    back[s, b] += p[s, b, c] * (1 - cosine(m, c)) * to_patch[s, b, m, c]
    return there, back, to_prompt, to_patch


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
def test_transport_is_equations_6_to_8(temperature):
    there, back, to_prompt, to_patch = by_loops(*problem(), temperature)
    patches, prompts, log_weights = problem()
    plans = transport_plans(patch_cosines(patches, prompts), log_weights, temperature)
    np.testing.assert_allclose(plans.prompt_given_patch, to_prompt, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(plans.patch_given_prompt, to_patch, rtol=1e-9, atol=1e-15)
    cost = conditional_transport(*problem(), balance=0.3, temperature=temperature)
    np.testing.assert_allclose(cost.patch_to_prompt, there, rtol=1e-10)
    np.testing.assert_allclose(cost.prompt_to_patch, back, rtol=1e-10)
    np.testing.assert_allclose(cost.total, 0.3 * there + 0.7 * back, rtol=1e-10)


def test_plans_are_conditional_distributions():
    patches, prompts, log_weights = problem()
    plans = transport_plans(patch_cosines(patches, prompts), log_weights)
    ones = torch.ones(S, B, dtype=torch.float64)
    torch.testing.assert_close(plans.prompt_given_patch.sum(-1), ones[..., None].expand(S, B, M))
    torch.testing.assert_close(plans.patch_given_prompt.sum(-2), ones[..., None].expand(S, B, C))


def test_balance_at_its_ends():
    ends = [conditional_transport(*problem(), balance=end) for end in (0.0, 1.0)]
    assert torch.equal(ends[0].total, ends[0].prompt_to_patch)
    assert torch.equal(ends[1].total, ends[1].patch_to_prompt)


def test_prompts_without_a_sample_dimension():
    patches, prompts, log_weights = problem()
    one = conditional_transport(patches, prompts[1], log_weights[1])
    assert one.total.shape == (B,)
    torch.testing.assert_close(one.total, conditional_transport(*problem()).total[1])


def test_one_class():
    """Nothing to choose: every patch goes to the one prompt, at its own cost."""
    patches, prompts, _ = problem(classes=1)
    cost = conditional_transport(patches, prompts, torch.zeros(S, B, 1, dtype=torch.float64))
    distance = 1 - patch_cosines(patches, prompts)[..., 0]
    torch.testing.assert_close(cost.patch_to_prompt, distance.mean(-1))


def test_one_patch():
    patches, prompts, log_weights = problem(patches=1)
    cost = conditional_transport(patches, prompts, log_weights)
    distance = 1 - patch_cosines(patches, prompts)[..., 0, :]
    torch.testing.assert_close(cost.prompt_to_patch, (log_weights.exp() * distance).sum(-1))


def test_one_class_and_one_patch_are_a_distance():
    patches, prompts, _ = problem(patches=1, classes=1)
    none = torch.zeros(S, B, 1, dtype=torch.float64)
    cost = conditional_transport(patches, prompts, none)
    distance = 1 - patch_cosines(patches, prompts)[..., 0, 0]
    for value in (*cost, entropic_transport(patches, prompts, none)):
        torch.testing.assert_close(value, distance)


@pytest.mark.parametrize("zero", [-math.inf, -1e5])
@pytest.mark.parametrize("temperature", [1.0, 1e-2, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_certain_image_uses_its_own_prompt_alone(zero, temperature, dtype):
    patches, prompts, log_weights = problem(dtype=dtype)
    certain = torch.full_like(log_weights, zero)
    certain[..., 2] = 0
    if zero > -math.inf and temperature == 1e-6:
        certain[..., [0, 1, 3]] = -1e8  # finite weights only win against cosine / T when they are larger
    patches, prompts, certain = (x.requires_grad_() for x in (patches, prompts, certain))
    cost = conditional_transport(patches, prompts, certain, temperature=temperature)
    alone = conditional_transport(
        patches, prompts[:, 2:3], torch.zeros(S, B, 1, dtype=dtype), temperature=temperature
    )
    torch.testing.assert_close(cost, alone)
    cost.total.sum().backward()
    for x in (patches, prompts, certain):
        assert torch.isfinite(x.grad).all()


def test_a_cold_plan_takes_the_nearest():
    patches, prompts, log_weights = problem()
    cost = conditional_transport(patches, prompts, log_weights, temperature=1e-6)
    distance = 1 - patch_cosines(patches, prompts)
    torch.testing.assert_close(cost.patch_to_prompt, distance.amin(-1).mean(-1))
    torch.testing.assert_close(cost.prompt_to_patch, (log_weights.exp() * distance.amin(-2)).sum(-1))


@pytest.mark.parametrize("temperature", [1e12, math.inf])
def test_a_hot_plan_ignores_the_cosines(temperature):
    patches, prompts, log_weights = problem()
    plans = transport_plans(patch_cosines(patches, prompts), log_weights, temperature)
    torch.testing.assert_close(plans.prompt_given_patch, log_weights.exp().unsqueeze(-2).expand(S, B, M, C))
    torch.testing.assert_close(plans.patch_given_prompt, torch.full_like(plans.patch_given_prompt, 1 / M))
    cost = conditional_transport(patches, prompts, log_weights, temperature=temperature)
    torch.testing.assert_close(cost.patch_to_prompt, cost.prompt_to_patch)


def test_lengths_of_features_and_orders_do_not_matter():
    patches, prompts, log_weights = problem()
    expected = conditional_transport(patches, prompts, log_weights, temperature=0.1)
    lengths = random(B, M, 1, seed=5).exp(), random(S, C, 1, seed=6).exp()
    scaled = conditional_transport(patches * lengths[0], prompts * lengths[1], log_weights, temperature=0.1)
    torch.testing.assert_close(scaled, expected)
    m, c = torch.randperm(M), torch.randperm(C)
    shuffled = patches[:, m], prompts[:, c], log_weights[..., c]
    torch.testing.assert_close(conditional_transport(*shuffled, temperature=0.1), expected)
    torch.testing.assert_close(
        entropic_transport(*shuffled), entropic_transport(patches, prompts, log_weights)
    )


def test_gradients():
    patches, prompts, log_weights = (x.requires_grad_() for x in problem(samples=1, images=2))
    for temperature in (1.0, 0.05):
        assert torch.autograd.gradcheck(
            lambda u, g, w, t=temperature: tuple(conditional_transport(u, g, w, 0.3, t)),
            (patches, prompts, log_weights),
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_half_precision(dtype, temperature):
    half = problem(patches=49, classes=20, width=64, dtype=dtype)
    single = tuple(x.float() for x in half)
    cost = conditional_transport(*half, temperature=temperature)
    assert cost.total.dtype == torch.float32
    torch.testing.assert_close(cost, conditional_transport(*single, temperature=temperature))
    torch.testing.assert_close(entropic_transport(*half), entropic_transport(*single))
    prompts = half[1].requires_grad_()
    conditional_transport(half[0], prompts, half[2], temperature=temperature).total.sum().backward()
    assert prompts.grad.dtype == dtype and torch.isfinite(prompts.grad).all()


@pytest.mark.parametrize("cells", [1, 2 * S * M * C, B * S * M * C - 1])
def test_a_few_images_at_a_time_is_the_same(monkeypatch, cells):
    def computed():
        leaves = [x.detach().requires_grad_() for x in problem()]
        result = conditional_transport(*leaves, 0.3, 0.5)
        return result, torch.autograd.grad(result.total.square().sum(), leaves)

    whole, gradients = computed()
    monkeypatch.setattr("pbprompt.prompts.pbprompt.transport.CELLS_AT_ONCE", cells)
    parts, same_gradients = computed()
    for one, other in zip((*whole, *gradients), (*parts, *same_gradients), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def linear_programme(cost, a, b):
    """min ⟨plan, cost⟩ with row sums a and column sums b."""
    m, c = cost.shape
    rows = np.kron(np.eye(m), np.ones(c))
    columns = np.kron(np.ones(m), np.eye(c))
    result = linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([a, b]))
    assert result.success
    return result.fun


def test_sinkhorn_tends_to_the_linear_programme():
    patches, prompts, log_weights = problem(samples=1)
    cost = 1 - patch_cosines(patches, prompts)[0]
    exact = [
        linear_programme(cost[i].numpy(), np.full(M, 1 / M), log_weights[0, i].exp().numpy())
        for i in range(B)
    ]
    gaps = []
    for epsilon in (0.3, 0.1, 0.03, 0.003):
        value = entropic_transport(patches, prompts, log_weights, epsilon, 5000)[0]
        gaps.append((value.numpy() - exact).max())
        assert (value.numpy() - exact).min() > -1e-6  # no plan is cheaper than the best
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3


def test_sinkhorn_keeps_both_marginals():
    cost = random(B, M, C).square()
    a, b = random(B, M, seed=1).softmax(-1), random(B, C, seed=2).softmax(-1)
    plan = sinkhorn(cost, a, b, 0.1, 1000)
    torch.testing.assert_close(plan.sum(-1), a, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(plan.sum(-2), b, rtol=1e-6, atol=1e-8)
    hot = sinkhorn(cost, a, b, 1e6, 100)  # entropy alone: independent
    torch.testing.assert_close(hot, a.unsqueeze(-1) * b.unsqueeze(-2), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaling_without_logarithms_is_the_same(epsilon, dtype):
    cost = 2 * torch.rand(3, 7, 5, generator=torch.Generator().manual_seed(1), dtype=dtype)
    cost[0, 0, 0], cost[0, 0, 1] = 0, 2  # both ends
    a = random(3, 7, seed=2, dtype=dtype).softmax(-1)
    b = (8 * random(3, 5, seed=3, dtype=dtype)).softmax(-1)  # weights of very different sizes
    for tolerance in (None, 1e-3):
        whole = sinkhorn(cost, a, b, epsilon, 60, tolerance)
        plain = sinkhorn(cost, a, b, epsilon, 60, tolerance, highest_cost=2.0)
        torch.testing.assert_close(plain, whole, rtol=1e-4 if dtype == torch.float32 else 1e-11, atol=1e-9)


def test_a_small_epsilon_goes_by_logarithms_whatever_the_highest_cost():
    cost = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    half = torch.tensor([0.5, 0.5])
    plan = sinkhorn(cost, half, half, 1e-3, highest_cost=2.0)
    torch.testing.assert_close(plan, torch.diag(half))


def test_sinkhorn_stops_at_its_tolerance():
    cost = random(B, M, C).square()
    a, b = random(B, M, seed=1).softmax(-1), random(B, C, seed=2).softmax(-1)
    loose = sinkhorn(cost, a, b, 0.05, 2000, tolerance=1e-2)
    assert (loose.sum(-1) - a).abs().max() <= 1e-2
    tight = sinkhorn(cost, a, b, 0.05, 2000, tolerance=1e-8)
    assert (tight.sum(-1) - a).abs().max() <= 1e-8
    assert not torch.equal(loose, tight)


@pytest.mark.parametrize("epsilon", [0.1, 1e-3])
def test_sinkhorn_with_a_certain_image(epsilon):
    patches, prompts, log_weights = problem(dtype=torch.float32)
    certain = torch.full_like(log_weights, -math.inf)
    certain[..., 2] = 0
    prompts.requires_grad_()
    value = entropic_transport(patches, prompts, certain, epsilon)
    alone = (1 - patch_cosines(patches, prompts)[..., 2]).mean(-1)
    torch.testing.assert_close(value, alone, rtol=0, atol=1e-4)
    value.sum().backward()
    assert torch.isfinite(prompts.grad).all()


def test_sinkhorn_plan_is_a_constant():
    cost = random(M, C).square().requires_grad_()
    a, b = torch.full((M,), 1 / M, dtype=torch.float64), random(C).softmax(-1).requires_grad_()
    assert not sinkhorn(cost, a, b).requires_grad


def test_the_gradient_is_that_of_the_regularised_optimum():
    """Envelope theorem: at convergence the fixed plan is the gradient of ⟨plan, cost⟩ − ε·H(plan)."""
    cost, epsilon = random(M, C).square(), 0.2
    a, b = torch.full((M,), 1 / M, dtype=torch.float64), random(C).softmax(-1)

    def optimum(x):
        plan = sinkhorn(x, a, b, epsilon, 3000)
        return ((plan * x).sum() + epsilon * torch.special.xlogy(plan, plan).sum()).item()

    plan, step = sinkhorn(cost, a, b, epsilon, 3000), 1e-5
    for m, c in ((0, 0), (2, 3), (4, 1)):
        nudge = torch.zeros_like(cost)
        nudge[m, c] = step
        slope = (optimum(cost + nudge) - optimum(cost - nudge)) / (2 * step)
        assert slope == pytest.approx(plan[m, c].item(), rel=1e-4, abs=1e-8)


def test_what_cannot_work_is_refused():
    with pytest.raises(InputError, match="temperature"):
        conditional_transport(*problem(), temperature=0.0)
    with pytest.raises(InputError, match="epsilon"):
        entropic_transport(*problem(), epsilon=0.0)
