"""ProKeR against numpy."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.rivals import proker
from pbprompt.evidence.rivals.proker import ProKeR, proximal_coefficients, published, rbf_kernel


def expected(frozen, ridge: float, beta: float) -> np.ndarray:
    def kernel(a, b):
        return np.exp(-beta * (1 - a @ b.T))

    system = kernel(frozen.x, frozen.x) / ridge + np.eye(len(frozen.x))
    coefficients = np.linalg.solve(system, frozen.onehot - frozen.x @ frozen.unit_text.T)
    return 100 * (frozen.z @ frozen.unit_text.T + kernel(frozen.z, frozen.x) @ coefficients)


@pytest.mark.parametrize("settings", [{}, {"ridge": 0.3, "beta": 4.0}])
def test_logits(frozen, settings, monkeypatch):
    method = frozen.fit(ProKeR, **settings)
    wanted = expected(
        frozen, **(settings or {"ridge": 0.05, "beta": 2.6})
    )  # 7 images of 3 classes: as 2 shots
    np.testing.assert_allclose(frozen.logits(method), wanted, rtol=1e-6)
    monkeypatch.setattr(proker, "AFFINITIES", 2 * len(frozen.x))  # two images at once, and one over
    np.testing.assert_allclose(frozen.logits(method), wanted, rtol=1e-6)


def test_published_settings_by_shots():
    assert [published(shots) for shots in (1, 3, 4, 7.9, 16, 100)] == [
        (0.05, 3.0), (0.05, 2.6), (0.05, 1.5), (0.05, 1.5), (0.1, 1.7), (0.1, 1.7),
    ]  # fmt: skip


def test_no_weight_of_the_images_is_zero_shot(frozen):
    found = frozen.logits(frozen.fit(ProKeR, ridge=1e-12, beta=1.0))
    np.testing.assert_allclose(found, 100 * frozen.z @ frozen.unit_text.T, atol=1e-7)


def test_the_search_finds_the_best_by_refits_without_each_image(frozen, monkeypatch):
    monkeypatch.setattr(proker, "BETAS", [1.0, 3.0])
    monkeypatch.setattr(proker, "RIDGES", [0.05, 0.8, 6.4])
    right = {}
    for beta in (1.0, 3.0):
        for ridge in (0.05, 0.8, 6.4):
            hits = 0
            for i, label in enumerate(frozen.labels):
                others = [row for row in range(len(frozen.x)) if row != i]
                kernel = np.exp(-beta * (1 - frozen.x[others] @ frozen.x.T))
                start = frozen.x @ frozen.unit_text.T
                system = kernel[:, others] / ridge + np.eye(len(others))
                solved = np.linalg.solve(system, (frozen.onehot - start)[others])
                hits += int((start[i] + kernel[:, i] @ solved).argmax() == label)
            right[ridge, beta] = hits
    assert len(set(right.values())) > 1
    ridge, beta = max(right, key=right.get)
    searched = frozen.fit(ProKeR, search=True)
    assert searched.fitted.beta.item() == beta
    np.testing.assert_allclose(frozen.logits(searched), expected(frozen, ridge, beta), rtol=1e-6)


def test_one_image_per_class_leaves_the_published_settings(frozen):
    rows, labels = [0, 1, 3], (0, 1, 2)
    few = type(frozen.images)(frozen.images.global_[rows], frozen.images.patches[rows])
    one, two = (frozen.fit(ProKeR, labels=labels, images=few, search=search) for search in (True, False))
    np.testing.assert_array_equal(frozen.logits(one), frozen.logits(two))


def test_kernel_and_coefficients():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(6, 4, dtype=torch.float64, generator=generator), dim=1)
    residuals = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    kernel = rbf_kernel(x, x, 1.7)
    # exp(−β(1 − cos)) = exp(−β‖x − y‖²/2) of unit vectors
    wanted = np.array([[np.exp(-1.7 * ((a - b) ** 2).sum() / 2) for b in x.numpy()] for a in x.numpy()])
    np.testing.assert_allclose(kernel, wanted, rtol=1e-12)
    found = proximal_coefficients(kernel, residuals, 0.07)
    np.testing.assert_allclose(found, np.linalg.inv(wanted / 0.07 + np.eye(6)) @ residuals.numpy(), rtol=1e-8)
    ridge = np.linalg.solve(wanted + 0.07 * np.eye(6), residuals.numpy())
    np.testing.assert_allclose(found, 0.07 * ridge, rtol=1e-8)
    np.testing.assert_allclose(kernel, wanted, rtol=1e-12)  # not changed in place
