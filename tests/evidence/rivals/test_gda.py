"""GDA for CLIP against numpy, its search for α included."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.rivals.linear import ALPHAS, GDA, best_alpha, gaussian_discriminant
from pbprompt.learners.method import make_config


def image_logits(x, labels, z) -> np.ndarray:
    n, d = x.shape
    means = np.stack([x[labels == c].mean(0) for c in range(labels.max() + 1)])
    covariance = np.cov((x - means[labels]).T)
    precision = d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))
    return np.array([[row @ precision @ m - 0.5 * m @ precision @ m for m in means] for row in z])


@pytest.mark.parametrize("alpha", [1.0, 0.03])
def test_logits(frozen, alpha):
    method = frozen.fit(GDA, alpha=alpha)
    wanted = 100 * frozen.z @ frozen.unit_text.T + alpha * image_logits(
        frozen.x, np.array(frozen.labels), frozen.z
    )
    np.testing.assert_allclose(frozen.logits(method), wanted, rtol=1e-7)


def test_a_new_name_has_the_mean_of_the_image_part(frozen):
    method = frozen.fit(GDA)
    method.prepare(("dog", "x"), frozen.template)
    dog = frozen.sentence("dog")
    images = image_logits(frozen.x, np.array(frozen.labels), frozen.z)
    wanted = 100 * frozen.z @ dog / np.linalg.norm(dog) + images.mean(1)
    np.testing.assert_allclose(frozen.logits(method)[:, 0], wanted, rtol=1e-7)


def test_cross_validated_alpha(frozen):
    import torch

    generator = torch.Generator().manual_seed(4)
    labels = np.array([0, 1, 2] * 6)
    x = torch.randn(3, 20, generator=generator)[labels] + 2 * torch.randn(18, 20, generator=generator)
    x = torch.nn.functional.normalize(x, dim=1).double()
    text = (8 * torch.randn(18, 3, generator=generator)).double()
    scores = []
    for alpha in ALPHAS:
        right, likelihood = 0, 0.0
        for fold in range(5):
            held = np.arange(18) // 3 % 5 == fold
            z = text[held].numpy() + alpha * image_logits(x[~held].numpy(), labels[~held], x[held].numpy())
            right += (z.argmax(1) == labels[held]).sum()
            shifted = z - z.max(1, keepdims=True)
            likelihood += (shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))[
                range(len(z)), labels[held]
            ].sum()
        scores.append((right, likelihood))
    wanted = ALPHAS[max(range(len(ALPHAS)), key=lambda place: scores[place])]
    assert best_alpha(x, torch.tensor(labels), text) == wanted
    assert len({right for right, _ in scores}) > 1  # the search had something to choose


def test_recipe(frozen):
    assert make_config(GDA).alpha == 1.0
    assert make_config(GDA, preset="cross-validated").alpha == 0.0
    one_each = frozen.encoded(3, seed=5)
    searched = frozen.fit(GDA, labels=(2, 0, 1), images=one_each, alpha=0.0)
    fixed = frozen.fit(GDA, labels=(2, 0, 1), images=one_each)
    np.testing.assert_array_equal(frozen.logits(searched), frozen.logits(fixed))


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
