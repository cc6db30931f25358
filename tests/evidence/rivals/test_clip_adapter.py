"""CLIP-Adapter against numpy and finite differences."""

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.rivals.adapters import CLIPAdapter
from pbprompt.learners.method import Batch, build_method, make_config


def prepared(frozen, **settings) -> CLIPAdapter:
    config = make_config(CLIPAdapter, overrides=[f"{key}={value}" for key, value in settings.items()])
    method = build_method(CLIPAdapter, config, frozen.backbone, 0, frozen.names, frozen.template)
    return method.to(frozen.backbone.dtype)


def expected_logits(frozen, x: np.ndarray, down: np.ndarray, up: np.ndarray, alpha: float) -> np.ndarray:
    mixed = alpha * np.maximum(np.maximum(x @ down.T, 0) @ up.T, 0) + (1 - alpha) * x
    return 100 * mixed / np.linalg.norm(mixed, axis=1, keepdims=True) @ frozen.unit_text.T


@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_logits_loss_and_gradient(frozen, alpha):
    method = prepared(frozen, alpha=alpha)
    down, up = (method.adapter[place].weight for place in (0, 2))
    assert down.shape == (frozen.text.shape[1] // 4, frozen.text.shape[1]) == up.T.shape
    weights = down.detach().numpy().copy(), up.detach().numpy().copy()
    others = frozen.others.global_.double().numpy()
    np.testing.assert_allclose(
        frozen.logits(method), expected_logits(frozen, others, *weights, alpha), rtol=1e-9
    )
    x = frozen.images.global_.double().numpy()

    def loss(down: np.ndarray) -> float:
        z = expected_logits(frozen, x, down, weights[1], alpha)
        z = z - z.max(1, keepdims=True)
        return -(z - np.log(np.exp(z).sum(1, keepdims=True)))[range(len(z)), list(frozen.labels)].mean()

    terms = method.loss(Batch(frozen.images, torch.tensor(frozen.labels)), torch.Generator(), examples=7)
    assert terms["total"].item() == pytest.approx(loss(weights[0]), rel=1e-9)
    method.backward(terms)
    place = np.unravel_index(np.abs(down.grad.numpy()).argmax(), down.shape)
    nudge = np.zeros_like(weights[0])
    nudge[place] = 1e-6
    slope = (loss(weights[0] + nudge) - loss(weights[0] - nudge)) / 2e-6
    assert down.grad[place].item() == pytest.approx(slope, rel=1e-5)


def test_new_names_have_their_sentence_and_no_prompts(frozen):
    method = prepared(frozen)
    method.prepare(("dog", "cat"), frozen.template)
    found = method.class_features(1, torch.Generator())
    np.testing.assert_allclose(found[0].numpy(), [frozen.sentence("dog"), frozen.sentence("cat")], rtol=1e-9)
    with pytest.raises(InputError, match="changes what images say"):
        method.prompts_of(found)


def test_recipe(frozen_tiny):
    config = make_config(CLIPAdapter)
    assert (config.optimiser, config.learning_rate, config.batch_size) == ("adam", 1e-5, 32)
    assert (config.alpha, config.reduction, config.weight_decay, config.warmup_epochs) == (0.2, 4, 5e-4, 1)
    method = prepared(frozen_tiny)
    assert [method.epochs_for(shots) for shots in (1, 4, 8, 16)] == [50, 100, 200, 200]
