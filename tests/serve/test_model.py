"""The model behind the server: its figures, and class names added while it works."""

import io
import threading

import pytest
import torch
from PIL import Image

from pbprompt.data.images import open_image
from pbprompt.model.folder import load_model
from pbprompt.model.predictor import predictive
from pbprompt.serve.limits import Limits, Refused
from pbprompt.serve.model import checked_names

LIMITS = Limits(classes=8, name_length=12)


def test_predictions_are_the_predictors(model, model_folder, lite, cat, guitar):
    images = [open_image(io.BytesIO(data)) for data in (cat, guitar)]
    outcomes = model.predict([model.tensor(image) for image in images])
    method, _ = load_model(model_folder, lite)
    predictor = predictive(method)
    for image, outcome in zip(images, outcomes, strict=True):
        encoded = lite.image(lite.preprocess(image)[None])
        said = predictor(encoded)
        assert outcome.classes == method.classes
        assert outcome.probabilities == pytest.approx(said.probabilities[0].tolist(), abs=1e-5)
        assert outcome.entropy == pytest.approx(said.entropy.item(), abs=1e-5)
        assert outcome.epistemic == pytest.approx(said.mutual_information.item(), abs=1e-5)
        logits = [method.sample_logits(encoded, drawn[None])[0, 0] for drawn in predictor.bank]
        each = torch.stack(logits).softmax(-1)
        deviations = (each - each.mean(0)).square().mean(0).sqrt()
        assert outcome.spreads == pytest.approx(deviations.tolist(), abs=1e-5)
    assert [max(zip(o.probabilities, o.classes, strict=True))[1] for o in outcomes] == ["cat", "guitar"]


def test_added_classes_predict_as_if_they_had_always_been_there(model, model_folder, lite, cat):
    tensor = model.tensor(Image.open(io.BytesIO(cat)).convert("RGB"))
    assert model.calibrated
    model.become(model.with_classes([" kitten ", "sea  lion"], LIMITS))
    assert model.classes[-2:] == ("kitten", "sea lion")
    (outcome,) = model.predict([tensor])
    method, info = load_model(model_folder, lite)
    method.prepare((*info.classes, "kitten", "sea lion"), info.template)
    said = predictive(method)(lite.image(tensor[None]))
    assert outcome.probabilities == pytest.approx(said.probabilities[0].tolist(), abs=1e-5)
    assert not model.calibrated and outcome.calibration is None  # validation images showed no such class


def test_predicting_while_classes_are_added_is_always_one_state_or_the_other(model, cat):
    tensor = model.tensor(Image.open(io.BytesIO(cat)).convert("RGB"))
    before = len(model.classes)
    stop, outcomes, failures = threading.Event(), [], []

    def predict():
        try:
            while not stop.is_set():
                outcomes.extend(model.predict([tensor]))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=predict)
    thread.start()
    for name in ("kitten", "otter", "wolf"):
        model.become(model.with_classes([name], LIMITS))
    stop.set()
    thread.join()
    assert not failures and outcomes
    for outcome in outcomes:
        assert len(outcome.probabilities) == len(outcome.classes) == len(outcome.spreads)
        assert sum(outcome.probabilities) == pytest.approx(1, abs=1e-4)
    assert len(model.classes) == before + 3


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["  "], 422),
        (["x" * 13], 422),
        (["a\x00b"], 422),
        (["\ud800"], 422),
        (["CAT"], 409),
        (["red_car", "Red car"], 409),
        (["a", "b", "c", "d"], 422),
    ],
)
def test_bad_names_are_refused_and_change_nothing(model, names, status):
    before = model.classes
    with pytest.raises(Refused) as refused:
        model.with_classes(names, LIMITS)
    assert refused.value.status == status and refused.value.reason.encode()
    assert model.classes == before and model.calibrated


def test_a_name_the_tokeniser_cannot_take_is_refused(model):
    with pytest.raises(Refused) as refused:
        model.with_classes(["many words " * 50], Limits(name_length=10_000))
    assert refused.value.status == 422 and "cat" in model.classes


def test_methods_without_new_classes_say_so(model, monkeypatch):
    monkeypatch.setattr(type(model._method), "takes_new_names", False)
    with pytest.raises(Refused) as refused:
        model.with_classes(["otter"], LIMITS)
    assert refused.value.status == 409


def test_names_are_tidied():
    assert checked_names([" sea\t lion "], ["cat"], LIMITS) == ["sea lion"]
    assert checked_names(["cat", "otter", " otter "], ["cat"], LIMITS) == ["otter"]


def test_names_that_are_there_change_nothing(model):
    assert model.with_classes(["cat", "dog"], LIMITS) is model._state
