"""POST /examples: a model that learns from labelled images while it is served."""

import base64
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fastapi.testclient import TestClient

from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.images import decode_image
from pbprompt.apps.serve.limits import Limits
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "guitar")


@pytest.fixture(scope="module")
def learner(lite, cat, guitar) -> TunedModel:
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind), lite, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    start = TunedModel(method, describe_model(method))
    return start.partial_fit(seen(start, cat, guitar), ["cat", "guitar"])


@pytest.fixture
def pupil(learner) -> Iterator[TestClient]:
    with TestClient(create_app(learner, examples=True), "http://localhost") as client:
        yield client


def seen(model: TunedModel, *images: bytes):
    see = model.backbone.preprocess
    return model.encode([see.normalised(decode_image(data, Limits(), see.cropper)) for data in images])


def form(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", ("photo", data)) for data in images]


def scores(client: TestClient, image: bytes) -> dict[str, float]:
    return client.post("/predict", files=form(image)).json()["predictions"][0]["scores"]


def test_it_becomes_the_model_that_has_learned_the_images(pupil, learner, cat, guitar, jpeg):
    before = scores(pupil, jpeg)
    answer = pupil.post("/examples", files=form(jpeg, guitar), data={"labels": ["dog", " red  panda "]})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "classes": [*CLASSES, "red panda"],
        "added": [],
        "calibrated": False,
        "thresholds": None,
        "class_mix": "as-trained",
    }
    expected = learner.partial_fit(seen(learner, jpeg, guitar), ["dog", "red panda"])
    (said,) = expected.predict(seen(learner, jpeg))
    assert scores(pupil, jpeg) == pytest.approx(said.scores, abs=1e-4)
    assert scores(pupil, jpeg)["dog"] > before["dog"]
    assert "pbprompt_examples_total 2.0" in pupil.get("/metrics").text


def test_json_says_the_same(pupil, learner, cat, jpeg):
    sent = {"images": [base64.b64encode(data).decode() for data in (cat, jpeg)], "labels": ["cat", "dog"]}
    assert pupil.post("/examples", json=sent).status_code == 200
    expected = learner.partial_fit(seen(learner, cat, jpeg), ["cat", "dog"])
    (said,) = expected.predict(seen(learner, cat))
    assert scores(pupil, cat) == pytest.approx(said.scores, abs=1e-4)


@pytest.mark.parametrize(
    ("labels", "status", "says"),
    [
        (["cat"], 422, "2 images and 1 labels"),
        ([], 422, "labels"),
        (["cat", "CAT"], 409, "another spelling"),
        (["cat", "  "], 422, "empty"),
        (["cat", "x" * 101], 422, "longer"),
    ],
)
def test_bad_labels_are_refused_and_teach_nothing(pupil, cat, guitar, labels, status, says):
    before = scores(pupil, cat)
    answer = pupil.post("/examples", files=form(cat, guitar), data={"labels": labels})
    assert answer.status_code == status and says in answer.json()["error"]
    assert scores(pupil, cat) == before and "pbprompt_examples_total 0.0" in pupil.get("/metrics").text


def test_one_bad_image_spoils_the_request(pupil, cat):
    answer = pupil.post("/examples", files=form(cat, b"text"), data={"labels": ["dog", "dog"]})
    assert answer.status_code == 415 and "image 2" in answer.json()["error"]
    assert "pbprompt_examples_total 0.0" in pupil.get("/metrics").text


def test_a_method_that_takes_no_names_learns_a_class_by_its_images(lite, cat, guitar, jpeg):
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind, overrides=["prior=none"]), lite, seed=1)
    method.prepare(("cat", "guitar"), "a photo of a {}.")
    start = TunedModel(method, describe_model(method))
    blind = start.partial_fit(seen(start, cat, guitar), ["cat", "guitar"])
    with TestClient(create_app(blind, examples=True), "http://localhost") as client:
        assert client.post("/examples", files=form(jpeg), data={"labels": ["dog"]}).status_code == 200
        said = scores(client, jpeg)
        assert set(said) == {"cat", "guitar", "dog"} and max(said, key=said.__getitem__) == "dog"


def test_methods_that_cannot_learn_on_say_so(model, cat):
    with TestClient(create_app(model, examples=True), "http://localhost") as client:
        answer = client.post("/examples", files=form(cat), data={"labels": ["cat"]})
        assert answer.status_code == 409 and "cannot learn on" in answer.json()["error"]
        assert client.get("/classes").json()["calibrated"] is True


def test_it_is_off_unless_asked_for_and_behind_the_key(learner, cat):
    sent = {"files": form(cat), "data": {"labels": ["cat"]}}
    with TestClient(create_app(learner), "http://localhost") as client:
        assert client.post("/examples", **sent).status_code == 404
        assert "/examples" not in client.get("/openapi.json").json()["paths"]
    with TestClient(create_app(learner, examples=True, api_key="k"), "http://localhost") as client:
        assert client.post("/examples", **sent).status_code == 401
        assert client.post("/examples", **sent, headers={"x-api-key": "k"}).status_code == 200
        assert "POST /examples" in client.get("/docs").text


def test_an_image_of_no_class_is_marked_unknown(pupil, learner, cat, guitar, jpeg):
    def ask(client, share):
        return client.post("/predict", files=form(jpeg), data={"none_at": share}).json()["predictions"][0]

    nothing = ask(pupil, "0.5")  # two images give no rank
    assert nothing["familiarity"] is None and nothing["unknown"] is None
    images, noise = seen(learner, cat, guitar), torch.Generator().manual_seed(0)
    many = Encoded(*(torch.cat([part] * 10) for part in images))
    many = many._replace(global_=many.global_ + 0.3 * torch.randn(many.global_.shape, generator=noise))
    taught = learner.partial_fit(many, ["cat", "guitar"] * 10)
    with TestClient(create_app(taught), "http://localhost") as client:
        familiarity = ask(client, "0.5")["familiarity"]
        assert 0 < familiarity < 1
        assert ask(client, f"{familiarity / 2}")["unknown"] is False
        assert ask(client, f"{(1 + familiarity) / 2}")["unknown"] is True


def test_what_it_learned_can_be_looked_at(pupil, cat):
    pupil.post("/examples", files=form(cat), data={"labels": ["red panda"]})
    shown = pupil.post("/explain", files=form(cat), data={"class": "red panda"})
    assert shown.status_code == 200 and 0 < shown.json()["score"] < 1


def test_a_method_that_leaves_images_out_judges_added_classes_by_the_others(learner, cat, guitar, jpeg):
    """Marks and sets stay, and it says whose images they rest on."""
    taught = learner.partial_fit(seen(learner, jpeg, guitar, cat), ["cat", "guitar", "cat"])
    taught = replace(taught, calibration=None)
    with TestClient(create_app(taught), "http://localhost") as client:
        plain = client.post("/predict", files=form(cat)).json()
        assert plain["predictions"][0]["prediction_set"] is None
        fields = {"classes": ["otter"], "reject_at": "0.01", "coverage": "0.2"}
        said = client.post("/predict", files=form(cat), data=fields).json()
    counted = taught.with_classes(["otter"]).with_left_out().calibration
    assert counted.left_out == len(counted) and counted.classes == len(taught.classes) + 1
    assert said["predictions"][0]["prediction_set"]
    assert said["predictions"][0]["unsure"] is not None
    assert said["note"] == f"no image of an added class was judged, only {counted.rests_on}"
