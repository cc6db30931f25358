"""CLAP against numpy: the multipliers, the constraint and the recipe."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.rivals.adapters import CLAP
from pbprompt.learners.method import Batch, make_config


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def test_multipliers_are_zero_shots_mean_probability_of_the_truth(frozen):
    method = frozen.fit(CLAP)
    p, labels = softmax(100 * frozen.x @ frozen.unit_text.T), np.array(frozen.labels)
    wanted = [p[labels == c, c].mean() for c in range(3)]
    np.testing.assert_allclose(method.fitted.multipliers, wanted, rtol=1e-9)
    with_another = frozen.fit(CLAP, names=(*frozen.names, "moon"))
    assert with_another.fitted.multipliers[3] == 1


@pytest.mark.parametrize("constrained", [True, False])
def test_loss(frozen, constrained):
    method = frozen.fit(CLAP, constrained=constrained)
    np.testing.assert_allclose(frozen.logits(method), 100 * frozen.z @ frozen.unit_text.T, rtol=1e-9)
    moved = np.random.default_rng(0).normal(size=frozen.text.shape) / 10
    method.residuals.data = torch.tensor(moved)
    terms = method.loss(Batch(frozen.images, torch.tensor(frozen.labels)), torch.Generator(), examples=7)
    prototypes = frozen.text + moved
    p = softmax(100 * frozen.x @ (prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)).T)
    wanted = -np.log(p[range(7), list(frozen.labels)]).mean()
    if constrained:
        wanted += np.mean(method.fitted.multipliers.numpy() * (moved**2).sum(1))
    assert terms["total"].item() == pytest.approx(wanted, rel=1e-9)


def test_recipe(frozen_tiny):
    config = make_config(CLAP)
    assert (config.optimiser, config.learning_rate, config.weight_decay) == ("sgd", 0.1, 0.0)
    assert (config.batch_size, config.warmup_epochs, config.constrained) == (256, 1, True)
    assert not make_config(CLAP, variant="zs-lp").constrained
    assert frozen_tiny.fit(CLAP).epochs_for(16) == 300
