"""Logistic regression against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pbprompt.evidence.rivals.logistic import logistic_regression


def data(n: int, d: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    y = torch.cat([torch.arange(classes), torch.arange(n - classes) ** 2 % classes])  # unbalanced
    means = torch.randn(classes, d, generator=generator)
    x = 2 + means[y] + torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x, dim=1).double(), y


@pytest.mark.parametrize(("n", "d", "classes"), [(60, 8, 4), (12, 40, 3), (30, 5, 2), (9, 20, 9)])
def test_scikit_learn_finds_the_same(n, d, classes):
    x, y = data(n, d, classes)
    strengths = [0.1, 5.0, 300.0]
    for strength, found in zip(strengths, logistic_regression(x, y, strengths), strict=True):
        # with two classes they penalise the difference of our two rows, by half as much
        theirs = LogisticRegression(C=strength * (1 + (classes == 2)), tol=1e-12, max_iter=100_000)
        theirs.fit(x.numpy(), y.numpy())
        weights, bias = theirs.coef_, theirs.intercept_
        if classes == 2:
            weights, bias = np.concatenate([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        np.testing.assert_allclose(found.weights, weights, atol=2e-5 * np.abs(weights).max())
        np.testing.assert_allclose(found.bias, bias - bias.mean(), atol=2e-5 * max(1, np.abs(bias).max()))
        said = found.logits(x).softmax(-1)
        np.testing.assert_allclose(said, theirs.predict_proba(x.numpy()), atol=1e-6)


@pytest.mark.parametrize("strength", [20.0, 4000.0])  # the latter hardly holds W back: a long way from 0
def test_the_gradient_vanishes(strength):
    x, y = data(40, 60, 5)
    (found,) = logistic_regression(x, y, [strength])
    weights, bias = (value.clone().requires_grad_() for value in found)
    z = x @ weights.T + bias
    total = strength * torch.nn.functional.cross_entropy(z, y, reduction="sum")
    (total + 0.5 * weights.square().sum()).backward()
    assert max(weights.grad.abs().max(), bias.grad.abs().max()) < 5e-7 * strength


def test_identical_images_are_survived():
    x = torch.ones(4, 3, dtype=torch.float64)
    (found,) = logistic_regression(x, torch.tensor([0, 1, 0, 1]), [1.0])
    assert torch.allclose(found.logits(x).softmax(-1), torch.full((4, 2), 0.5, dtype=torch.float64))


def test_single_precision_comes_as_near_as_it_can():
    x, y = data(60, 8, 4)
    for tolerance in (1e-4, 0.0):  # the latter is out of its reach: it stops at the end of its digits
        (rough,) = logistic_regression(x.float(), y, [5.0], tolerance=tolerance)
        (fine,) = logistic_regression(x, y, [5.0])
        assert (rough.logits(x.float()).softmax(-1) - fine.logits(x).softmax(-1)).abs().max() < 1e-3


def test_small_fits_run_on_one_processor_and_give_the_others_back(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    logistic_regression(*data(12, 4, 3), [1.0])
    assert calls == [1, 7]
