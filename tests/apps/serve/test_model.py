"""What clients may change of the served model: class names that are added, and those that are refused."""

import io
from dataclasses import replace

import pytest
from PIL import Image

from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.model import doubt_note, new_names, with_classes
from pbprompt.errors import InputError
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel

LIMITS = Limits(classes=8, name_length=12)


def no_doubt(model, fitted):
    return doubt_note(model, fitted, fitted, 0.5)


def test_added_classes_predict_as_if_they_had_always_been_there(model, model_folder, lite, cat):
    pixels = lite.preprocess(Image.open(io.BytesIO(cat)).convert("RGB"))
    assert no_doubt(model, model) is None
    more = with_classes(model, [" kitten ", "sea  lion"], LIMITS)
    assert more.classes[-2:] == ("kitten", "sea lion") and "kitten" not in model.classes
    (said,) = more.predict(more.encode([pixels]))
    loaded = TunedModel.load(model_folder, lite)
    method, info = loaded.method, loaded.info
    method.prepare((*info.classes, "kitten", "sea lion"), info.template)
    expected = predictive(method)(lite.image(pixels[None])).probabilities[0].tolist()
    assert list(said.scores.values()) == pytest.approx(expected, abs=1e-5)
    assert no_doubt(more, model) == "no validation image is of an added class"
    bare = replace(model, calibration=None)
    assert no_doubt(bare, bare) == "the model was fitted without validation images"
    assert "learned examples" in no_doubt(bare, model)


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
        with_classes(model, names, LIMITS)
    assert refused.value.status == status and refused.value.reason.encode()
    assert model.classes == before and model.calibrated


def test_a_name_the_tokeniser_cannot_take_is_refused(model):
    with pytest.raises(InputError):
        with_classes(model, ["many words " * 50], Limits(name_length=10_000))
    assert "cat" in model.classes


def test_methods_without_new_classes_say_so(model, monkeypatch):
    monkeypatch.setattr(type(model.method), "takes_new_names", False)
    with pytest.raises(Refused) as refused:
        with_classes(model, ["otter"], LIMITS)
    assert refused.value.status == 409


def test_names_are_tidied():
    assert new_names([" sea\t lion "], ["cat"], LIMITS) == ["sea lion"]
    assert new_names(["cat", "otter", " otter "], ["cat"], LIMITS) == ["otter"]


def test_names_that_are_there_change_nothing(model):
    assert with_classes(model, ["cat", "dog"], LIMITS) is model
