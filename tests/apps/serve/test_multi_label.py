"""A multi-label model behind HTTP: what it answers, and what it refuses."""

import pytest
import torch

from pbprompt.apps.classifier.tuning import GivenFeatures
from pbprompt.apps.serve.labelling import Labelling
from pbprompt.errors import InputError
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.towers.backbone import Encoded

LABELS = ("cat", "guitar", "owl")


@pytest.fixture(scope="module")
def labels_model(lite, tmp_path_factory) -> TunedModel:
    """Fitted to features that its names point at."""
    names = torch.nn.functional.normalize(TunedModel.zero_shot(lite, LABELS).predictor.bank[0], dim=1)
    generator = torch.Generator().manual_seed(0)
    has = torch.rand(40, 3, generator=generator) < 0.4
    x = has.float() @ names + 0.05 * torch.randn(40, lite.embed_dim, generator=generator)
    items = tuple(
        Item(str(row), 0, labels=tuple(own.nonzero().flatten().tolist())) for row, own in enumerate(has)
    )
    dataset = Dataset("toys", tmp_path_factory.mktemp("toys"), LABELS, items, multi_label=True)
    kind = find_method("conjugate")
    return TunedModel.fit(dataset, GivenFeatures(lite, Encoded(x, x[:, None])), kind, kind.Config())


@pytest.fixture
def served(labels_model):
    from fastapi.testclient import TestClient

    from pbprompt.apps.serve.app import create_app

    app = create_app(labels_model, examples=True, shared_classes=True)
    with TestClient(app, "http://localhost") as client:
        yield client


def test_a_probability_per_label_and_those_at_their_thresholds(served, labels_model, cat, guitar):
    response = served.post("/predict", files=[("files", ("a.webp", cat)), ("files", ("b.webp", guitar))])
    body = response.json()
    assert response.status_code == 200 and body["note"] is None
    assert [set(one) for one in body["predictions"]] == [{"image", "labels", "scores", "nothing"}] * 2
    levels = served.get("/classes").json()["thresholds"]
    assert levels == labels_model.thresholds
    for one in body["predictions"]:
        assert list(one["scores"]) == list(LABELS)
        given = [name for name, score in one["scores"].items() if score >= levels[name]]
        assert set(one["labels"]) == set(given)
    assert body["predictions"][0]["scores"] != body["predictions"][1]["scores"]
    few = served.post("/predict", files={"files": ("a.webp", cat)}, data={"top_k": "1"}).json()
    assert len(few["predictions"][0]["scores"]) == 1


def test_health_says_what_it_is(served):
    health = served.get("/healthz").json()
    assert health["multi_label"] and health["classes"] == 3


def test_what_a_multi_label_model_cannot_do_is_refused_in_a_sentence(served, cat):
    image = {"files": ("a.webp", cat)}
    refusals = [
        served.post("/predict", files=image, data={"classes": "dog"}),
        served.post("/explain", files={"file": ("a.webp", cat)}, data={"class": "cat"}),
        served.post("/classes", json={"names": ["dog"]}),
        served.post("/examples", files=image, data={"labels": "cat"}),
    ]
    for response in refusals:
        assert response.status_code == 409 and "the model is multi-label" in response.json()["error"]


def test_a_folder_is_labelled_with_single_label_models_alone(labels_model, tmp_path):
    with pytest.raises(InputError, match="is multi-label, and this needs a single-label one"):
        Labelling.open(labels_model, tmp_path)
