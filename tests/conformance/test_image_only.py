"""Methods on an image tower without text: those that can do without it do all else as ever."""

import json

import pytest
import torch

from pbprompt.apps.export import export_onnx
from pbprompt.errors import InputError
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method, methods
from pbprompt.testing import behaviours
from pbprompt.testing.fits import NAMES, fitted, probabilities, random_images, tiny_dino
from pbprompt.vision.towers.backbone import Encoded

CHECKS = [
    behaviours.is_a_function_of_its_seed,
    behaviours.saves_and_loads,
    behaviours.takes_new_names_or_refuses,
    behaviours.keeps_classes_as_they_are,
    behaviours.keeps_classes_of_one_name_apart,
    behaviours.takes_a_class_without_images_or_names_it,
]
ABLE = ("conjugate", "gda", "linear-probe", "nearest-mean", "nearest-neighbours", "tower-evidence")


def test_these_do_without_text():
    assert tuple(name for name, kind in methods().items() if not kind.needs_text) == ABLE


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ABLE)
def test_conforms(monkeypatch, name, check):
    monkeypatch.setattr(behaviours, "tiny_vit", tiny_dino)
    check(find_method(name))


def test_the_others_say_which_ones_do():
    with pytest.raises(
        InputError, match="use one of conjugate, gda, linear-probe, nearest-mean, nearest-neighbours"
    ):
        fitted(find_method("coop"), {}, tiny_dino())


def test_the_default_is_conjugate_without_names():
    method, images = fitted(find_method("conjugate"), {}, tiny_dino()), random_images(tiny_dino())
    assert method.config.prior == "none" and not method.takes_new_names
    asked = fitted(find_method("conjugate"), {"prior": "none"}, tiny_dino())
    assert torch.equal(probabilities(method, images), probabilities(asked, images))
    model = method.fitted
    assert model.familiarity(images) is None and model.left_out() is not None  # of twelve images
    many = random_images(tiny_dino(), torch.arange(24) % 3)
    model = fitted(find_method("conjugate"), {}, tiny_dino(), images=many).fitted
    assert model.familiarity(many).shape == (24,)
    with pytest.raises(InputError, match="reads no text: leave the setting 'prior' as it is"):
        fitted(find_method("conjugate"), {"prior": "ensemble"}, tiny_dino())


def test_a_class_is_learned_by_its_first_images():
    dino, images = tiny_dino(), random_images(tiny_dino())
    kind, two = find_method("conjugate"), images.labels < 2
    whole = fitted(kind, {}, dino, NAMES, images)
    first = fitted(kind, {}, dino, NAMES[:2], images.subset(two.nonzero().squeeze(1)))
    third = images.subset((~two).nonzero().squeeze(1))
    model = TunedModel(first, describe_model(first))
    learned = model.partial_fit(Encoded(third.global_, third.patches), [NAMES[2]] * len(third))
    assert learned.classes == NAMES and model.classes == NAMES[:2]
    assert torch.allclose(probabilities(learned.method, images), probabilities(whole, images), atol=1e-5)


def test_gda_is_the_discriminant_analysis_alone():
    dino, images = tiny_dino(), random_images(tiny_dino())
    one, other = (fitted(find_method("gda"), {}, dino, names) for names in (NAMES, ("a", "b", "c")))
    assert torch.equal(probabilities(one, images), probabilities(other, images))
    assert not one.class_features(1, torch.Generator()).isnan().any()


@pytest.mark.usefixtures("one_onnx_registry")
def test_is_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    method = fitted(find_method("conjugate"), {}, tiny_dino())
    written = export_onnx(TunedModel(method, describe_model(method)), tmp_path / "model.onnx")
    assert written.difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["pbprompt"])["classes"] == list(NAMES)
