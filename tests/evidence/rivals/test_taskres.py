"""TaskRes against numpy and finite differences."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.rivals.adapters import TaskRes
from pbprompt.learners.method import Batch, make_config


def expected_loss(frozen, residuals: np.ndarray, alpha: float = 0.5) -> float:
    prototypes = frozen.text + alpha * residuals
    z = 100 * frozen.x @ (prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)).T
    z = z - z.max(1, keepdims=True)
    return -(z - np.log(np.exp(z).sum(1, keepdims=True)))[range(len(z)), list(frozen.labels)].mean()


def test_it_starts_at_zero_shot_and_its_loss_is_that_of_the_residuals(frozen):
    method = frozen.fit(TaskRes)
    np.testing.assert_allclose(frozen.logits(method), 100 * frozen.z @ frozen.unit_text.T, rtol=1e-9)
    residuals = np.random.default_rng(0).normal(size=frozen.text.shape) / 10
    method.residuals.data = torch.tensor(residuals)
    terms = method.loss(Batch(frozen.images, torch.tensor(frozen.labels)), torch.Generator(), examples=7)
    assert terms["total"].item() == pytest.approx(expected_loss(frozen, residuals), rel=1e-9)
    method.backward(terms)
    for place in [(0, 0), (2, 5)]:
        nudge = np.zeros_like(residuals)
        nudge[place] = 1e-6
        slope = expected_loss(frozen, residuals + nudge) - expected_loss(frozen, residuals - nudge)
        assert method.residuals.grad[place].item() == pytest.approx(slope / 2e-6, rel=1e-5)


def test_new_names_have_no_residual(frozen):
    method = frozen.fit(TaskRes)
    method.residuals.data += 1
    method.prepare(("dog", "cat"), frozen.template)
    found = method.class_features(1, torch.Generator())[0].detach().numpy()
    np.testing.assert_allclose(found, [frozen.sentence("dog"), frozen.sentence("cat") + 0.5], rtol=1e-9)


def test_recipe(frozen_tiny):
    config = make_config(TaskRes)
    assert (config.optimiser, config.learning_rate, config.batch_size) == ("adam", 0.002, 256)
    assert (config.alpha, config.weight_decay, config.warmup_epochs) == (0.5, 5e-4, 1)
    assert make_config(TaskRes, preset="flowers").alpha == 1.0
    assert make_config(TaskRes, preset="imagenet").learning_rate == 2e-4
    method = frozen_tiny.fit(TaskRes)
    assert [method.epochs_for(shots) for shots in (1, 4, 8, 16)] == [100, 100, 200, 200]
