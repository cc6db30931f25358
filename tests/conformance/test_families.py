"""Methods on the towers of every family that differs from CLIP: lite-vit's own, the others from tiny folders
that the tests write."""

import json

import pytest
import torch
from metaclip_folder import metaclip_model, write_metaclip
from siglip_folder import siglip_model, write_siglip
from trunk_folder import write_trunk

from pbprompt.apps.export import export_onnx
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predict_features, predictive, zero_shot
from pbprompt.model.scoring import score
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.testing import behaviours
from pbprompt.testing.fits import NAMES, fitted, prepared, probabilities, random_images, train_recorded
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.transforms import normalise
from pbprompt.vision.towers.loading.load import load_backbone

CHECKS = [
    behaviours.is_a_function_of_its_seed,
    behaviours.saves_and_loads,
    behaviours.goes_back_to_its_start,
    behaviours.takes_new_names_or_refuses,
    behaviours.keeps_classes_as_they_are,
]
METHODS = ("conjugate", "coop", "pbprompt")
WRITE = {
    "lite-vit": lambda folder: "lite-vit",
    "eva": lambda folder: write_trunk(folder, "eva"),
    "perception": lambda folder: write_trunk(folder, "perception"),
    "siglip": lambda folder: write_siglip(folder, siglip_model()),
    "metaclip_2": lambda folder: write_metaclip(folder, metaclip_model()),
}
# the towers that no other test exports, each with another method, as a graph takes seconds to write
EXPORTED = {"siglip": "pbprompt", "eva": "coop", "perception": "conjugate"}


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    return {family: load_backbone(write(tmp_path_factory.mktemp(family))) for family, write in WRITE.items()}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_conforms_on_a_text_tower_that_is_not_causal(towers, monkeypatch, name, check):
    monkeypatch.setattr(behaviours, "tiny_vit", lambda: towers["siglip"])
    check(find_method(name))


@pytest.mark.parametrize("family", WRITE)
@pytest.mark.parametrize("name", METHODS)
def test_learns(towers, name, family):
    images = random_images(towers[family])
    method = prepared(find_method(name), {}, towers[family])
    losses = train_recorded(method, images, epochs=20)
    assert not losses or min(losses[-5:]) < losses[0]
    plain = score(predict_features(zero_shot(towers[family], NAMES, "a {}."), images), images)["nll"]
    assert score(predict_features(predictive(method), images), images)["nll"] < plain


@pytest.mark.parametrize("family", WRITE)
def test_a_saved_model_finds_its_towers_by_itself(towers, tmp_path, family):
    method, images = fitted(find_method("coop"), {}, towers[family]), random_images(towers[family])
    TunedModel(method, describe_model(method)).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model").method
    assert torch.equal(probabilities(method, images), probabilities(loaded, images))


@pytest.mark.usefixtures("one_onnx_registry")
@pytest.mark.parametrize("family", EXPORTED)
def test_is_exported_and_says_how_images_are_prepared(towers, tmp_path, family):
    onnxruntime = pytest.importorskip("onnxruntime")
    method = fitted(find_method(EXPORTED[family]), {}, towers[family])
    model = TunedModel(method, describe_model(method))
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    see = towers[family].preprocess
    square, draws = (2, see.size, see.size, 3), torch.Generator().manual_seed(0)
    pixels = torch.randint(256, square, dtype=torch.uint8, generator=draws)
    with torch.no_grad():
        image = towers[family].image(normalise(pixels, see.mean, see.std))
    features = Features(*image, torch.zeros(2, dtype=torch.long))
    wanted = predict_features(predictive(method), features).probabilities
    found = session.run(["probabilities"], {"image": pixels.numpy()})[0]
    assert (torch.from_numpy(found) - wanted).abs().max() < 1e-4
    facts = json.loads(session.get_modelmeta().custom_metadata_map["pbprompt"])["preprocessing"]
    assert see.interpolation.upper() in facts["resize"]
    assert ("crop" in facts) == (see.fit == "crop")
    assert ("the whole image to size x size" in facts["resize"]) == (see.fit == "squash")
