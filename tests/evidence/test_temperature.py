"""The best temperature against scipy's search."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from pbprompt.errors import InputError
from pbprompt.evidence.temperature import fit_temperature


def drawn(n: int, c: int, scale: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are `scale` times as sure as they should be."""
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, c, generator=generator)
    return scale * z, torch.multinomial(z.softmax(-1), 1, generator=generator).squeeze(1)


def loss(logits: torch.Tensor, labels: torch.Tensor, log_t: float) -> float:
    return -log_softmax(logits.double().numpy() / np.exp(log_t), axis=1)[range(len(labels)), labels].mean()


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 7.0, 200.0])
@pytest.mark.parametrize(("n", "c"), [(30, 2), (400, 10)])
def test_scipy_finds_the_same(scale, n, c):
    logits, labels = drawn(n, c, scale, seed=n)
    wanted = minimize_scalar(
        lambda u: loss(logits, labels, u), bounds=(-7, 7), method="bounded", options={"xatol": 1e-9}
    )
    found = np.log(fit_temperature(logits, labels))
    assert found == pytest.approx(wanted.x, abs=2e-6)  # scipy's own comparison of losses ends about there
    slope = (loss(logits, labels, found + 1e-4) - loss(logits, labels, found - 1e-4)) / 2e-4
    assert abs(slope) < 1e-6


def test_scaling_the_logits_scales_the_temperature_and_shifting_them_does_not():
    logits, labels = drawn(200, 5, 1.0, seed=3)
    once = fit_temperature(logits, labels)
    assert fit_temperature(8 * logits, labels) == pytest.approx(8 * once, rel=1e-6)
    assert fit_temperature(logits.log_softmax(-1), labels) == pytest.approx(once, rel=1e-6)


def test_where_there_is_no_minimum_it_ends_at_a_bound():
    labels = torch.arange(4)
    assert fit_temperature(torch.eye(4), labels) == pytest.approx(1e-3)
    assert fit_temperature(-torch.eye(4), labels) == pytest.approx(1e3)
    assert 1e-3 <= fit_temperature(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])) <= 1e3


def test_a_probability_of_zero_is_survived():
    logits = torch.tensor([[0.0, -1.0], [0.0, -torch.inf], [1.0, 0.0]])
    assert np.isfinite(fit_temperature(logits, torch.tensor([0, 0, 1])))


def test_no_images():
    with pytest.raises(InputError, match="there are none"):
        fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.long))


def test_a_handful_of_right_images_makes_nobody_certain():
    """All of n are right by a wide margin: the mean target is Platt's (n + 1)/(n + 2), and so are they."""
    logits = torch.tensor([[9.0, 0.0]] * 10)
    labels = torch.zeros(10, dtype=torch.long)
    assert fit_temperature(logits, labels) < 0.1
    temperature = fit_temperature(logits, labels, smoothing=1 / 12)
    assert (logits / temperature).softmax(-1)[0, 0].item() == pytest.approx(1 - 0.5 / 12, abs=1e-4)
