"""The rows of scikit-learn say what scikit-learn says."""

import importlib

import numpy as np
import pytest
import torch

from pbprompt import registry
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.vision.towers.backbone import Encoded


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(registry, "_methods", registry.methods())
    return importlib.reload(importlib.import_module("benchmarks.study.scikit_learn"))


def images(count: int, classes: int, dim: int, seed: int = 0) -> tuple[Encoded, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(9))
    x = centres[labels] + 0.7 * torch.randn(count, dim, generator=generator)
    return Encoded(x, x[:, None][:, :0]), labels


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["Logistic", "LDA"])
def test_probabilities(rows, tiny_vit, monkeypatch, kind, classes):
    monkeypatch.setattr(rows, "STRENGTHS", [3])
    kind = getattr(rows, kind)
    method = build_method(kind, make_config(kind), tiny_vit, seed=0)
    method.prepare(("cat", "dog", "car")[:classes], "{}")
    (train, labels), (test, _) = images(30, classes, 32), images(7, classes, 32, seed=1)
    method.begin(train, labels)
    x, new = (torch.nn.functional.normalize(part.global_).double().numpy() for part in (train, test))
    if kind is rows.LDA:
        plain = rows.LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    else:
        plain = rows.LogisticRegression(C=3, max_iter=500)
    wanted = plain.fit(x, labels.numpy()).predict_proba(new)
    np.testing.assert_allclose(predictive(method)(test).probabilities.numpy(), wanted, atol=1e-4)


def test_one_image_per_class(rows, tiny_vit):
    for kind in (rows.Logistic, rows.LDA):
        method = build_method(kind, make_config(kind), tiny_vit, seed=0)
        method.prepare(("cat", "dog", "car"), "{}")
        train, labels = images(3, 3, 32)
        method.begin(train, labels)
        assert predictive(method)(train).probabilities.argmax(1).tolist() == labels.tolist()
