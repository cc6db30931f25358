"""The posterior against torch.distributions, and sampling against its own moments."""

import inspect
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from pbprompt.errors import InputError
from pbprompt.prompts.pbprompt.variational import (
    GaussianPosterior,
    draw_noise,
    gaussian_kl,
    noise_of_names,
    reduce_kl,
    reparameterise,
    sample,
)
from pbprompt.vision.images.names import name_key

C, W = 3, 5


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("prior_std", [1.0, 0.1, 3.0])
def test_kl_is_that_of_torch_distributions(prior_std):
    mean, log_variance, prior_mean = random(C, W), random(C, W, seed=1), random(C, W, seed=2)
    expected = kl_divergence(
        Normal(mean, (0.5 * log_variance).exp()), Normal(prior_mean, torch.full_like(mean, prior_std))
    )
    torch.testing.assert_close(gaussian_kl(mean, log_variance, prior_mean, prior_std), expected)


def test_kl_is_the_written_formula_at_unit_prior():
    mean, log_variance, label = random(C, W), random(C, W, seed=1), random(C, W, seed=2)
    total = 0.0
    for c in range(C):
        for j in range(W):
            variance = math.exp(log_variance[c, j])
            total += 0.5 * (variance + (mean[c, j] - label[c, j]).item() ** 2 - 1 - math.log(variance))
    assert reduce_kl(gaussian_kl(mean, log_variance, label), "sum").item() == pytest.approx(total)


def test_kl_is_zero_at_the_prior_and_keeps_its_digits_near_it():
    mean = random(C, W, dtype=torch.float32)
    at_prior = torch.full_like(mean, 2 * math.log(0.3))
    assert gaussian_kl(mean, at_prior, mean, 0.3).abs().max() < 1e-12
    near = gaussian_kl(mean, torch.full_like(mean, 1e-3), mean)  # ½(e^t − 1 − t) = t²/4 + …
    torch.testing.assert_close(near, torch.full_like(mean, 0.25e-6 + 1e-9 / 12), rtol=1e-3, atol=0)
    assert (gaussian_kl(random(C, W), random(C, W, seed=1) * 5, random(C, W, seed=2)) >= 0).all()


def test_reductions():
    kl = random(C, W).square()
    assert reduce_kl(kl, "sum").item() == pytest.approx(kl.numpy().sum())
    assert reduce_kl(kl, "mean").item() == pytest.approx(kl.numpy().mean())
    assert reduce_kl(kl, "elbo", examples=32).item() == pytest.approx(kl.numpy().sum() / 32)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InputError, match="use 'elbo', 'mean' or 'sum'"):
        inspect.unwrap(reduce_kl)(random(C, W), "max")


def test_mean_and_variance_heads():
    posterior = GaussianPosterior(W).double()
    embedding = random(C, W)
    mean, log_variance = posterior(embedding)
    for c in range(C):
        torch.testing.assert_close(mean[c], posterior.mean.weight @ embedding[c] + posterior.mean.bias)
        torch.testing.assert_close(
            log_variance[c], posterior.log_variance.weight @ embedding[c] + posterior.log_variance.bias
        )
    assert sum(p.numel() for p in posterior.parameters()) == 2 * (W * W + W)


def test_starting_points():
    embedding = random(C, W, dtype=torch.float32) * 100
    mean, log_variance = GaussianPosterior(W, initial_std=0.14, mean_residual=True)(embedding)
    assert torch.equal(mean, embedding)
    torch.testing.assert_close((0.5 * log_variance).exp(), torch.full((C, W), 0.14))
    with pytest.raises(InputError, match="initial_std"):
        GaussianPosterior(W, initial_std=0.0)


def test_samples_have_the_posterior_moments():
    mean, log_variance = random(C, W), random(C, W, seed=1)
    draws = sample(mean, log_variance, 20_000, torch.Generator().manual_seed(0))
    std = (0.5 * log_variance).exp()
    standardised = (draws - mean) / std
    assert standardised.mean(0).abs().max() < 0.05
    torch.testing.assert_close(draws.std(0) / std, torch.ones_like(std), rtol=0, atol=0.05)
    flat = standardised.flatten(1)
    assert (torch.corrcoef(flat.T) - torch.eye(C * W)).abs().max() < 0.05  # classes and dimensions apart


def test_a_seed_fixes_the_samples_whatever_the_precision():
    mean, log_variance = random(C, W), random(C, W, seed=1)
    first = sample(mean, log_variance, 4, torch.Generator().manual_seed(7))
    torch.randn(10)  # the global generator plays no part
    assert torch.equal(first, sample(mean, log_variance, 4, torch.Generator().manual_seed(7)))
    assert not torch.equal(first, sample(mean, log_variance, 4, torch.Generator().manual_seed(8)))
    single = sample(mean.float(), log_variance.float(), 4, torch.Generator().manual_seed(7))
    torch.testing.assert_close(single.double(), first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_antithetic_draws_come_in_pairs(samples):
    mean, log_variance = torch.randn(3, 4), torch.randn(3, 4)
    noise = torch.Generator().manual_seed(1)
    drawn = sample(mean, log_variance, samples, noise, antithetic=True)
    half = -(-samples // 2)
    first = sample(mean, log_variance, half, torch.Generator().manual_seed(1))
    assert drawn.shape == (samples, 3, 4)
    torch.testing.assert_close(drawn[:half], first, rtol=0, atol=0)
    torch.testing.assert_close(drawn[half:], 2 * mean - first[: samples - half])


def test_gradients():
    mean, log_variance, prior = (random(C, W, seed=s).requires_grad_() for s in range(3))
    noise = draw_noise((2, C, W), torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda m, v: reparameterise(m, v, noise), (mean, log_variance))
    assert torch.autograd.gradcheck(lambda m, v, p: gaussian_kl(m, v, p, 0.5), (mean, log_variance, prior))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    mean, log_variance, prior = (random(C, W, seed=s, dtype=dtype) for s in range(3))
    kl = gaussian_kl(mean, log_variance, prior)
    assert kl.dtype == torch.float32
    torch.testing.assert_close(kl, gaussian_kl(mean.float(), log_variance.float(), prior.float()))
    assert GaussianPosterior(W)(mean)[0].dtype == torch.float32


def test_noise_belongs_to_a_name():
    """To the bit, whatever the other classes are; a seed, a draw and a name have noise of their own."""

    def noise(*names: str, seed: int = 3) -> dict[str, torch.Tensor]:
        drawn = noise_of_names([*map(name_key, names)], 4, 50, torch.Generator().manual_seed(seed))
        return dict(zip(names, drawn.unbind(1), strict=True))

    alone = noise("cat", "red panda")
    among = noise("owl", "red panda", "train", "cat")
    assert torch.equal(alone["cat"], among["cat"]) and torch.equal(alone["red panda"], among["red panda"])
    assert torch.equal(alone["red panda"], noise("Red_Panda")["Red_Panda"])  # one name in two spellings
    different = torch.stack([*among.values(), noise("cat", seed=4)["cat"]]).flatten(0, 1)
    assert len(different.unique(dim=0)) == len(different) == 20
    twins = noise_of_names(("crane", "crane"), 4, 50, torch.Generator().manual_seed(3))
    assert not torch.equal(twins[:, 0], twins[:, 1])
    many = noise_of_names([f"thing {n}" for n in range(200)], 20, 50, torch.Generator().manual_seed(0))
    assert abs(many.mean()) < 0.01 and abs(many.std() - 1) < 0.01
    assert abs(torch.corrcoef(many.transpose(0, 1).flatten(1))[0, 1:]).max() < 0.2


def test_noise_of_names_moves_its_generator_on():
    generator = torch.Generator().manual_seed(3)
    first, second = (noise_of_names(("cat",), 2, 8, generator) for _ in range(2))
    assert not torch.equal(first, second)
