"""What a rule decides of each image, against the predictor's own numbers."""

import math

import pytest
import torch

from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.rule import NO_RULE, Rule
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "car", "bus")


def predictions(predictor, images, rule=NO_RULE):
    model = TunedModel(predictor.method, describe_model(predictor.method), samples=len(predictor.bank))
    return model.predict(images, rule)


@pytest.fixture
def predictor(tiny_vit):
    method = build_method(PBPrompt, make_config(PBPrompt, overrides=["initial_std=0.2"]), tiny_vit, seed=1)
    method.prepare(CLASSES, "a {}.")
    return predictive(method, samples=5)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return Encoded(torch.randn(12, 32, generator=generator), torch.randn(12, 3, 32, generator=generator))


def test_numbers_are_the_predictors(predictor, images):
    said = predictor(images)
    for at, record in enumerate(predictions(predictor, images)):
        row = said.probabilities[at].tolist()
        assert list(record.scores) == list(CLASSES)
        assert list(record.scores.values()) == pytest.approx(row, abs=1e-6)
        assert record.label == CLASSES[row.index(max(row))]
        assert record.score == pytest.approx(max(row), abs=1e-6)
        assert record.entropy == pytest.approx(said.entropy[at].item(), abs=1e-6)
        assert record.epistemic == pytest.approx(said.mutual_information[at].item(), abs=1e-6)
        assert record.spread == pytest.approx(said.spread[at].item(), abs=1e-6)
        assert record.unsure is None and record.prediction_set is None


def test_unsure_is_below_the_threshold_and_not_at_it(predictor, images):
    scores = sorted(record.score for record in predictions(predictor, images))
    records = predictions(predictor, images, Rule(threshold=scores[5]))
    assert [record.unsure for record in records] == [record.score < scores[5] for record in records]
    assert sum(bool(record.unsure) for record in records) == 5
    assert all(record.unsure for record in predictions(predictor, images, Rule(threshold=math.inf)))


def test_sets_hold_the_likely_classes_and_always_one(predictor, images):
    for record in predictions(predictor, images, Rule(quantile=0.8)):
        ordered = sorted(record.scores.items(), key=lambda pair: -pair[1])
        likely = tuple(name for name, score in ordered if 1 - score <= 0.8)
        assert record.prediction_set == (likely or (record.label,))
    for record in predictions(predictor, images, Rule(quantile=-1.0)):
        assert record.prediction_set == (record.label,)
    for record in predictions(predictor, images, Rule(quantile=math.inf)):
        assert set(record.prediction_set) == set(CLASSES)


def test_what_goes_to_a_mere_name_is_not_none_of_these(tiny_vit):
    chance = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(2, tiny_vit.embed_dim, generator=chance)
    labels = torch.arange(40) % 2
    x = means[labels] + torch.randn(40, tiny_vit.embed_dim, generator=chance)
    method = build_method(Conjugate, ConjugateConfig(), tiny_vit, seed=0)
    method.prepare(CLASSES[:2], "a {}.")
    method.begin(Encoded(x, x.unsqueeze(1)), labels, seed=0)
    method.finish()
    far = torch.randn(200, tiny_vit.embed_dim, generator=chance)
    rule = Rule(refusal=0.05)
    alone = predictions(predictive(method), Encoded(far, far.unsqueeze(1)), rule)
    assert any(one.unknown for one in alone)
    method.prepare(CLASSES[:3], "a {}.")
    for before, one in zip(
        alone, predictions(predictive(method), Encoded(far, far.unsqueeze(1)), rule), strict=True
    ):
        assert one.familiarity == before.familiarity
        assert one.unknown == (before.unknown and one.label != "car")
