"""Methods on a text tower that is not causal and an image tower that pools by attention: a tiny SigLIP."""

import json

import pytest
import torch
from siglip_folder import siglip_model, write_siglip

from pbprompt.clip.loading.load import load_backbone
from pbprompt.export import export_onnx
from pbprompt.model.folder import describe_model, load_model, save_model
from pbprompt.model.predictor import predictive
from pbprompt.model.scoring import score, zero_shot
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.testing import behaviours
from pbprompt.testing.fits import NAMES, fitted, prepared, probabilities, random_images, train_recorded

CHECKS = [
    behaviours.is_a_function_of_its_seed,
    behaviours.saves_and_loads,
    behaviours.goes_back_to_its_start,
    behaviours.takes_new_names_or_refuses,
    behaviours.keeps_classes_as_they_are,
]
METHODS = ("conjugate", "coop", "pbprompt")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    return load_backbone(write_siglip(tmp_path_factory.mktemp("siglip"), siglip_model()))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_conforms(siglip, monkeypatch, name, check):
    monkeypatch.setattr(behaviours, "tiny_vit", lambda: siglip)
    check(find_method(name))


@pytest.mark.parametrize("name", METHODS)
def test_learns(siglip, name):
    images = random_images(siglip)
    method = prepared(find_method(name), {}, siglip)
    losses = train_recorded(method, images, epochs=20)
    assert not losses or min(losses[-5:]) < losses[0]
    plain = score(zero_shot(siglip, NAMES, "a {}."), images)["accuracy"]
    assert score(predictive(method), images)["accuracy"] > plain


def test_a_saved_model_finds_its_towers_by_itself(siglip, tmp_path):
    method, images = fitted(find_method("coop"), {}, siglip), random_images(siglip)
    save_model(tmp_path / "model", method, describe_model(method))
    loaded, _ = load_model(tmp_path / "model")
    assert torch.equal(probabilities(method, images), probabilities(loaded, images))


@pytest.mark.parametrize("name", METHODS)
def test_is_exported_and_says_that_images_are_squashed(siglip, tmp_path, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    method = fitted(find_method(name), {}, siglip)
    export_onnx(TunedModel(method, describe_model(method)), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["pbprompt"])["preprocessing"]
    assert "BILINEAR: the whole image to size x size" in facts["resize"] and "crop" not in facts
