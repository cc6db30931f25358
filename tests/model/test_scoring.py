"""Figures of a tuned model, of the untuned backbone and of plain classifiers, against ones by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pbprompt.apps.classifier.tuning import GivenFeatures
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method, make_config
from pbprompt.model import scoring
from pbprompt.model.evaluate import evaluate
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predict_features, predictive, zero_shot
from pbprompt.model.scoring import CHEAP, against, probe_is_quick, rival_figures, score
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.similarity import unit

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
    model = TunedModel(method, describe_model(method), samples=5, seed=2)
    labels = features.labels.numpy()
    items = tuple(Item(str(row), int(label)) for row, label in enumerate(labels))
    dataset = Dataset("own", Path(), CLASSES, test=items, template=TEMPLATE)
    found, _ = evaluate(model, dataset, "test", GivenFeatures(tiny_vit, features.images))
    assert_figures(found, by_hand(model.predictor.bank, features, tiny_vit.logit_scale), labels)
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
    found = score(predict_features(predictor, features), features)
    assert found["accuracy"] == 0 and 80 < found["nll"] < np.inf


def test_predictions_keep_the_order(method, features):
    predictor = predictive(method, samples=3)
    whole = predict_features(predictor, features)
    part = predict_features(predictor, features.subset(slice(10, 13)))
    torch.testing.assert_close(part.probabilities, whole.probabilities[10:13], rtol=1e-5, atol=1e-6)


def test_the_leaderboard_is_of_images_left_out(apart, tiny_vit):
    found = rival_figures(tiny_vit, CLASSES[:3], apart, None, 1, CHEAP)
    assert set(found) == {"conjugate", "nearest-mean", "nearest-neighbours", "linear-probe"}
    losses = [figures["nll"] for figures in found.values()]
    assert losses == sorted(losses)
    fitted = rival_figures(tiny_vit, CLASSES[:3], apart, apart, 1)["linear-probe"]
    assert found["linear-probe"]["nll"] > fitted["nll"]  # which has seen them
    assert rival_figures(tiny_vit, CLASSES[:3], apart.subset(slice(0, 3)), None, 1, CHEAP) == {}


# ---------------------------------------------------------------- series


@pytest.fixture(scope="module")
def bursts(tiny_vit) -> tuple[Features, torch.Tensor]:
    """Five bursts of four in each of three classes that nothing tells apart: only its twins find a burst."""
    chance, series = torch.Generator().manual_seed(0), torch.arange(60) // 4
    scenes = torch.randn(15, tiny_vit.embed_dim, generator=chance)[series]
    images = scenes + 0.05 * torch.randn(60, tiny_vit.embed_dim, generator=chance)
    return Features(images, torch.zeros(60, 4, tiny_vit.embed_dim).half(), series % 3), series


def test_all_methods_are_judged_with_the_same_series_held_out(bursts, tiny_vit, monkeypatch):
    images, series = bursts
    given = GivenFeatures(tiny_vit, images.images)
    items = tuple(Item(str(row), row // 4 % 3, group=f"s{row // 4}") for row in range(60))
    dataset = Dataset("own", Path(), CLASSES[:3], train=items)
    model = TunedModel.fit(dataset, given, Conjugate, ConjugateConfig(prior="none"))
    asked = {}
    answers = scoring.Fit.answers

    def recorded(self, train, test, groups=None):
        rows = [int((images.global_ == one).all(1).nonzero()) for one in test.global_]
        asked.setdefault(self.kind.name, []).append(rows)
        assert not set(series[rows].tolist()) & set(groups.tolist())
        return answers(self, train, test, groups)

    monkeypatch.setattr(scoring.Fit, "answers", recorded)
    figures, _ = evaluate(model, dataset, "left-out", given, rivals=True)
    assert set(asked) == {"conjugate", *scoring.RIVALS} and figures["series"] == 15
    assert all(folds == asked["conjugate"] for folds in asked.values())


def test_twins_help_no_one_where_series_are_held_out(bursts, tiny_vit):
    images, series = bursts
    apiece, whole = (
        rival_figures(tiny_vit, CLASSES[:3], images, None, 1, CHEAP, groups) for groups in (None, series)
    )
    for name in scoring.RIVALS:
        assert apiece[name]["accuracy"] > 0.9 and whole[name]["accuracy"] < 0.7, name
    told, kept = (dict(against(images, None, groups=groups)) for groups in (None, series))
    for name in told:
        assert told[name]["accuracy"] > 0.9 and kept[name]["accuracy"] < 0.7, name


def test_a_classifier_that_takes_more_images_is_left_out(apart):
    """Of two images a class each fold has one, and discriminant analysis needs more images than classes."""
    names = [name for name, _ in against(apart.subset(slice(0, 6)), apart.subset(slice(6, 12)))]
    assert "LDA (shrinkage)" not in names and len(names) == 3


def test_settings_are_searched_by_series_too(bursts):
    """Nothing tells the classes apart: by series the weakest fit is best, by twins a strong one."""
    images, series = bursts
    asked = Features(torch.randn(30, images.global_.shape[1]), images.patches[:30], torch.arange(30) % 3)
    losses = [next(against(images, asked, groups=groups))[1]["nll"] for groups in (None, series)]
    assert losses[1] < losses[0] - 0.05


# ---------------------------------------------------------------- plain classifiers of the same images


@pytest.fixture(scope="module")
def apart(tiny_vit) -> Features:
    """Twelve images of three classes that lie apart."""
    labels, width = torch.arange(12) % 3, tiny_vit.embed_dim
    noise = torch.randn(12, width, generator=torch.Generator().manual_seed(0))
    return Features(noise + 4 * torch.eye(width)[labels], torch.zeros(12, 4, width).half(), labels)


def test_both_rivals_are_fitted_to_the_training_images(apart, tiny_vit):
    found = rival_figures(tiny_vit, CLASSES[:3], apart, apart, seed=1)
    assert list(found) == ["nearest-mean", "nearest-neighbours", "linear-probe"]
    x = unit(apart.global_)
    means = torch.stack([x[apart.labels == place].mean(0) for place in range(3)])
    right = (x @ unit(means).T).argmax(1) == apart.labels
    assert found["nearest-mean"]["accuracy"] == pytest.approx(right.float().mean().item())
    assert set(found["linear-probe"]) >= {"accuracy", "nll", "ece"}


def test_a_model_is_no_rival_of_its_own(apart, tiny_vit):
    given, kind = GivenFeatures(tiny_vit, apart.images), find_method("linear-probe")
    dataset = Dataset("own", Path(), CLASSES[:3], tuple(Item(str(row), row % 3) for row in range(12)))
    model = TunedModel.fit(dataset, given, kind, kind.Config())
    figures, _ = evaluate(model, dataset, "left-out", given, rivals=True)
    assert set(figures["rivals"]) == {"nearest-mean", "nearest-neighbours"}


def test_the_probe_is_left_out_where_it_takes_long(apart, tiny_vit, monkeypatch):
    monkeypatch.setattr(scoring, "MOST_PRODUCTS", 12 * 3 * tiny_vit.embed_dim - 1)
    assert not probe_is_quick(12, 3, tiny_vit.embed_dim)
    assert list(rival_figures(tiny_vit, CLASSES[:3], apart, apart, 1)) == [
        "nearest-mean",
        "nearest-neighbours",
    ]


def test_sixteen_shots_of_the_pets_are_quick_and_of_a_thousand_classes_not():
    assert probe_is_quick(16 * 37, 37, 512) and not probe_is_quick(16_000, 1000, 512)


def test_a_class_without_a_training_image_has_no_rivals(apart, tiny_vit):
    assert rival_figures(tiny_vit, CLASSES[:3], apart.subset(slice(0, 2)), apart, 1) == {}
