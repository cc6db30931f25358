"""Eq. 9: its terms, its weights and its sign."""

import math

import numpy as np
import pytest
import torch

from pbprompt.prompts.pbprompt.elbo import combined_elbo, negative_log_likelihood

S, B = 3, 4


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_total_is_equation_9():
    log_p, kl, transport = (
        -random(S, B).square(),
        torch.tensor(2.5, dtype=torch.float64),
        random(S, B, seed=1),
    )
    terms = combined_elbo(log_p, kl, transport, kl_weight=0.1, transport_weight=0.01)
    nll = -sum(log_p[s, b].item() for s in range(S) for b in range(B)) / (S * B)
    assert terms.nll.item() == pytest.approx(nll)
    assert terms.kl.item() == 2.5
    assert terms.transport.item() == pytest.approx(transport.numpy().mean())
    assert terms.total.item() == pytest.approx(nll + 0.1 * 2.5 + 0.01 * transport.numpy().mean())


def test_a_larger_divergence_is_a_larger_loss():
    kl = torch.tensor(1.0, requires_grad=True)
    combined_elbo(-torch.ones(B), kl, kl_weight=0.5).total.backward()
    assert kl.grad.item() == 0.5


def test_log_of_mean():
    log_p = -random(S, B).square()
    expected = -np.log(np.exp(log_p.numpy()).mean(0)).mean()
    assert combined_elbo(log_p, reading="log_of_mean").nll.item() == pytest.approx(expected)
    assert expected < combined_elbo(log_p).nll.item()  # Jensen


@pytest.mark.parametrize("shape", [(B,), (1, B)])
def test_one_sample_has_one_reading(shape):
    log_p = -random(*shape).square()
    torch.testing.assert_close(
        negative_log_likelihood(log_p, "log_of_mean"), negative_log_likelihood(log_p, "mean_of_logs")
    )


def test_log_of_mean_does_not_underflow():
    log_p = torch.full((S, B), -1e4, requires_grad=True)
    loss = negative_log_likelihood(log_p, "log_of_mean")
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    torch.testing.assert_close(log_p.grad, torch.full((S, B), -1 / (S * B)))


def test_terms_left_out_are_zero():
    terms = combined_elbo(torch.full((B,), -math.log(2)))
    assert terms.total.item() == terms.nll.item() == pytest.approx(math.log(2))
    assert terms.kl.item() == terms.transport.item() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    log_p = (-random(S, B).square()).to(dtype)
    assert combined_elbo(log_p).total.dtype == torch.float32
    torch.testing.assert_close(combined_elbo(log_p), combined_elbo(log_p.float()))


@pytest.mark.parametrize("reading", ["mean_of_logs", "log_of_mean"])
def test_gradients(reading):
    log_p, kl, transport = (random(*s).requires_grad_() for s in ((S, B), (), (S, B)))
    assert torch.autograd.gradcheck(
        lambda p, k, t: combined_elbo(p, k, t, 0.3, 0.2, reading).total, (log_p, kl, transport)
    )
