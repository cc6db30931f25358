"""What the endpoints share: one batch for questions to several models, while the model changes."""

import io
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.service import Question
from pbprompt.learners.predictive import Prediction
from pbprompt.model.decisions import NO_RULE


def test_each_image_of_a_batch_is_answered_by_the_model_and_rule_it_was_sent_to(service, model, cat, guitar):
    see = model.backbone.preprocess
    first, second = (see.cropper(Image.open(io.BytesIO(data)).convert("RGB")) for data in (cat, guitar))
    more, rule = model.with_classes(["kitten"]), model.rule(0.9, 0.9)
    asked = [
        Question(first, model, rule),
        Question(second, model, rule),
        Question(first, more, NO_RULE),
        Question(second, model, NO_RULE),
    ]
    for question, said in zip(asked, service._predict_batch(asked), strict=True):
        seen = question.model.encode([see.normalised(question.square)])
        (alone,) = question.model.predict(seen, question.rule)
        assert said.scores == pytest.approx(alone.scores, abs=1e-5)
        assert said.spreads == pytest.approx(alone.spreads, abs=1e-5)
        assert (said.label, said.unsure, said.prediction_set) == (
            alone.label,
            alone.unsure,
            alone.prediction_set,
        )


def test_predicting_while_classes_are_added_is_always_one_model_or_the_other(sharing, cat):
    stop, answers = threading.Event(), []

    def predict():
        while not stop.is_set():
            answers.append(sharing.post("/predict", files=[("files", ("cat", cat))]))

    thread = threading.Thread(target=predict)
    thread.start()
    for name in ("kitten", "otter", "wolf"):
        assert sharing.post("/classes", json={"names": [name]}).status_code == 200
    stop.set()
    thread.join()
    assert answers and {answer.status_code for answer in answers} == {200}
    for said in (answer.json() for answer in answers):
        (one,) = said["predictions"]
        assert list(one["scores"]) == list(one["spreads"]) and 5 <= len(one["scores"]) <= 8
        assert sum(one["scores"].values()) == pytest.approx(1, abs=1e-4)
        assert (one["unsure"] is None) is (len(one["scores"]) > 5) is (said["note"] is not None)


def test_free_memory_is_given_back_now_and_then(model, monkeypatch):
    given_back = threading.Event()
    monkeypatch.setattr("pbprompt.apps.serve.service.TRIM_SECONDS", 0.001)
    trim = SimpleNamespace(malloc_trim=lambda keep: given_back.set())
    monkeypatch.setattr("ctypes.CDLL", lambda library: trim)
    with TestClient(create_app(model)):
        assert given_back.wait(60)


def test_familiar_and_unsure_answers_are_counted(service):
    said = Prediction("cat", {"cat": 1.0}, {"cat": 0.0}, 0.0, 0.0, unsure=True, familiarity=0.03)
    service._count([said, replace(said, unsure=False, familiarity=0.5), replace(said, label="brought along")])
    page = service.metrics.page().decode()
    assert 'pbprompt_familiarity_bucket{le="0.05"} 2.0' in page and "pbprompt_unsure_total 2.0" in page
    assert 'pbprompt_answers_total{label="(added)"} 1.0' in page
