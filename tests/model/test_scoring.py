"""Figures of a tuned model and of the untuned backbone, against a computation by hand."""

import numpy as np
import pytest
import torch

from pbprompt.features.bank import Features
from pbprompt.methods.base import build_method, make_config
from pbprompt.methods.pbprompt import PBPrompt
from pbprompt.model.predictor import predictive
from pbprompt.model.scoring import compare, predict_features, score, zero_shot

CLASSES = ("cat", "dog", "golden_retriever", "car", "bus", "tench", "zebra")
TEMPLATE = "a drawing of a {}."
COUNT = 60


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return Features(
        torch.randn(COUNT, 32, generator=generator),
        torch.randn(COUNT, 3, 32, generator=generator).half(),
        torch.randint(len(CLASSES), (COUNT,), generator=generator),
    )


@pytest.fixture
def method(tiny_vit):
    method = build_method(PBPrompt, make_config(PBPrompt, overrides=["initial_std=0.2"]), tiny_vit, seed=1)
    method.prepare(CLASSES, TEMPLATE)
    return method


def by_hand(bank, features, scale):
    """Mean class probabilities over the bank, in float64."""
    g, f = bank.double().numpy(), features.global_.double().numpy()
    g = g / np.linalg.norm(g, axis=-1, keepdims=True)
    f = f / np.linalg.norm(f, axis=-1, keepdims=True)
    powers = np.exp(scale * (np.einsum("bd,scd->sbc", f, g) - 1))
    return (powers / powers.sum(-1, keepdims=True)).mean(0)


def assert_figures(found, probabilities, labels):
    own = probabilities[np.arange(COUNT), labels]
    right = probabilities.argmax(-1) == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-4)
    truth = np.eye(len(CLASSES))[labels]
    assert found["brier"] == pytest.approx(((probabilities - truth) ** 2).sum(-1).mean(), rel=1e-4)
    confidence = probabilities.max(-1)
    ece = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            ece += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert found["ece"] == pytest.approx(ece, abs=1e-4)
    assert {"top5", "macro_f1", "ece_adaptive", "aurc"} < set(found)


def sentences(backbone):
    texts = [TEMPLATE.replace("{}", name.replace("_", " ")) for name in CLASSES]
    ids, lengths = backbone.tokenizer(texts)
    return backbone.text(backbone.token_embedding(ids), lengths)[None]


def test_tuned_and_zero_shot_side_by_side(tiny_vit, method, features):
    predictor = predictive(method, samples=5, seed=2)
    found = compare(predictor, features, predict_features(predictor, features))
    labels = features.labels.numpy()
    assert_figures(found, by_hand(predictor.bank, features, tiny_vit.logit_scale), labels)
    assert_figures(found["zero_shot"], by_hand(sentences(tiny_vit), features, tiny_vit.logit_scale), labels)
    assert found["images"] == COUNT and found["nll"] != found["zero_shot"]["nll"]
    assert all(isinstance(value, float | int) for value in found["zero_shot"].values())  # ready for JSON


def test_zero_shot_uses_the_sentence(tiny_vit):
    bank = zero_shot(tiny_vit, CLASSES, TEMPLATE).bank
    torch.testing.assert_close(bank, sentences(tiny_vit), rtol=1e-4, atol=1e-5)
    other = zero_shot(tiny_vit, CLASSES, "a photo of a {}.").bank
    assert (bank - other).abs().max() > 1e-3


def test_a_sure_mistake_costs_a_finite_amount(tiny_vit, method, features, monkeypatch):
    """Float32 has no probability below 1e-45: the figure stays a number."""
    predictor = predictive(method, samples=2)
    wrong = torch.full((2, COUNT, len(CLASSES)), -500.0)
    wrong[:, torch.arange(COUNT), (features.labels + 1) % len(CLASSES)] = 500.0
    monkeypatch.setattr(method, "sample_logits", lambda images, bank: wrong)
    found = score(predictor, features)
    assert found["accuracy"] == 0 and 80 < found["nll"] < np.inf


def test_predictions_keep_the_order(method, features):
    predictor = predictive(method, samples=3)
    whole = predict_features(predictor, features)
    part = predict_features(predictor, features.subset(slice(10, 13)))
    torch.testing.assert_close(part.probabilities, whole.probabilities[10:13], rtol=1e-5, atol=1e-6)
