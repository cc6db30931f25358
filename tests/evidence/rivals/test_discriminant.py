"""Gaussian discriminant analysis against numpy, with a pseudo-inverse as the authors have it."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.rivals.discriminant import gaussian_discriminant


def expected(x: np.ndarray, y: list[int]) -> tuple[np.ndarray, np.ndarray]:
    n, d = x.shape
    means = np.stack(
        [np.mean([row for row, label in zip(x, y, strict=True) if label == c], 0) for c in range(max(y) + 1)]
    )
    covariance = np.cov(np.stack([row - means[label] for row, label in zip(x, y, strict=True)]).T)
    precision = d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))
    return means @ precision, np.array([-0.5 * m @ precision @ m for m in means])


@pytest.mark.parametrize("d", [3, 40])
def test_weights_and_biases(d):
    y = [0, 2, 1, 2, 2, 0, 1, 2]
    x = torch.randn(len(y), d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    found = gaussian_discriminant(x, torch.tensor(y))
    weights, bias = expected(x.numpy(), y)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.bias, bias, rtol=1e-8, atol=1e-10)


def test_one_image_a_class_takes_the_spread_of_the_classes():
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = gaussian_discriminant(x, torch.arange(4))
    covariance = np.cov(x.numpy().T)
    precision = 6 * np.linalg.inv(3 * covariance + np.trace(covariance) * np.eye(6))
    np.testing.assert_allclose(found.weights, x.numpy() @ precision, rtol=1e-8)
    assert found.logits(x).argmax(1).tolist() == [0, 1, 2, 3]


def test_images_that_are_all_alike_say_nothing():
    found = gaussian_discriminant(torch.ones(3, 2, dtype=torch.float64), torch.tensor([0, 0, 1]))
    assert not found.weights.any() and not found.bias.any()
