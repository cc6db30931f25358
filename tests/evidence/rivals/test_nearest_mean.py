"""Nearest class mean against numpy."""

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.rivals.nearest import NearestMean
from pbprompt.learners.method import MethodConfig, build_method
from pbprompt.learners.trained import Trained
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.towers.backbone import Backbone, Encoded

NAMES = ("cat", "golden_retriever", "Ångström")
TEMPLATE = "a photo of a {}."


def encoded(backbone: Backbone, count: int, seed: int) -> Encoded:
    x = 7 * torch.randn(count, backbone.embed_dim, generator=torch.Generator().manual_seed(seed))
    return Encoded(x, x.new_zeros(count, 0, backbone.embed_dim))


def labels(count: int) -> torch.Tensor:
    return torch.arange(count) ** 2 % 3  # 0, 1, 1, 0, 1, 1, …


def fitted(backbone: Backbone) -> NearestMean:
    method = build_method(NearestMean, MethodConfig(), backbone, seed=0)
    method.prepare(NAMES, TEMPLATE)
    y = labels(7)
    y[3] = 2
    method.begin(encoded(backbone, 7, seed=1), y)
    return method


def expected_logits(backbone: Backbone, images: Encoded) -> np.ndarray:
    y = labels(7).numpy()
    y[3] = 2
    train_x = encoded(backbone, 7, seed=1).global_.double().numpy()
    train_x /= np.linalg.norm(train_x, axis=1, keepdims=True)
    x = images.global_.double().numpy()
    logits = np.empty((len(x), 3))
    for c in range(3):
        mean = np.mean([row for row, label in zip(train_x, y, strict=True) if label == c], axis=0)
        for i, row in enumerate(x):
            logits[i, c] = 100 * row @ mean / np.linalg.norm(row) / np.linalg.norm(mean)
    return logits


def test_logits(tiny_vit):
    method, images = fitted(tiny_vit), encoded(tiny_vit, 5, seed=2)
    logits = method.sample_logits(images, method.class_features(1, torch.Generator()))
    np.testing.assert_allclose(logits[0].numpy(), expected_logits(tiny_vit, images), rtol=1e-4, atol=1e-4)


def test_classes_in_another_order_and_fewer(tiny_vit):
    method, images = fitted(tiny_vit), encoded(tiny_vit, 5, seed=2)
    method.prepare((NAMES[2], NAMES[0]), TEMPLATE)
    logits = method.sample_logits(images, method.class_features(1, torch.Generator()))
    expected = expected_logits(tiny_vit, images)[:, [2, 0]]
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=1e-4, atol=1e-4)


def test_new_names_are_refused(tiny_vit):
    method = fitted(tiny_vit)
    with pytest.raises(InputError, match=r"only the classes it has images of.*'dog'"):
        method.prepare((*NAMES, "dog"), TEMPLATE)
    assert method.classes == NAMES


def test_a_class_without_images_is_refused(tiny_vit):
    method = build_method(NearestMean, MethodConfig(), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="'Ångström' has no training image"):
        method.begin(encoded(tiny_vit, 4, seed=1), labels(4) % 2)


def test_unfitted_says_so(tiny_vit):
    method = build_method(NearestMean, MethodConfig(), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="fit it"):
        predictive(method)


def test_no_step_can_be_taken(tiny_vit):
    method = fitted(tiny_vit)
    assert not isinstance(method, Trained) and method.counted_parameters() == 0


def test_model_folder(tiny_vit, tmp_path):
    method, images = fitted(tiny_vit), encoded(tiny_vit, 5, seed=2)
    info = describe_model(method, seed=0, shots=2)
    TunedModel(method, info).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model", tiny_vit).method
    assert torch.equal(predictive(loaded)(images).probabilities, predictive(method)(images).probabilities)
    with pytest.raises(InputError, match="only the classes"):
        loaded.prepare(["dog"], TEMPLATE)
