"""Nearest neighbours against scikit-learn, and the number of them."""

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from pbprompt.evidence.rivals.nearest import NearestNeighbours
from pbprompt.learners.method import MethodConfig, build_method
from pbprompt.model.predictor import predictive
from pbprompt.vision.towers.backbone import Encoded


def fitted(backbone, x, y):
    method = build_method(NearestNeighbours, MethodConfig(), backbone, seed=0)
    method.prepare(("cat", "dog", "car"), "{}")
    method.begin(Encoded(x, x.unsqueeze(1)), y)
    return method


def drawn(backbone, images, spread):
    chance = torch.Generator().manual_seed(0)
    means = torch.randn(3, backbone.embed_dim, generator=chance)
    labels = torch.arange(images) % 3
    return means[labels] + spread * torch.randn(images, backbone.embed_dim, generator=chance), labels


def test_votes_are_scikit_learns(tiny_vit):
    x, y = drawn(tiny_vit, 60, 2.0)
    method = fitted(tiny_vit, x[:40], y[:40])
    k = int(method.fitted.neighbours)
    theirs = KNeighborsClassifier(k, metric="cosine").fit(x[:40].numpy(), y[:40].numpy())
    votes = k * theirs.predict_proba(x[40:].numpy())
    said = predictive(method)(Encoded(x[40:], x[40:].unsqueeze(1))).probabilities
    np.testing.assert_allclose(said, (votes + 1 / 3) / (k + 1), atol=1e-5)


def test_more_neighbours_where_classes_overlap(tiny_vit):
    alone, many = (
        int(fitted(tiny_vit, *drawn(tiny_vit, 90, spread)).fitted.neighbours) for spread in (0.1, 4.0)
    )
    assert many > alone or alone == 16  # far apart, all of the class's own vote alike
    assert int(fitted(tiny_vit, *drawn(tiny_vit, 1, 1.0)).fitted.neighbours) == 1
