"""Methods on several backbones, of which one reads no text: those that can do all else as ever."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from pbprompt.apps.export import export_onnx
from pbprompt.errors import InputError
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method, methods
from pbprompt.testing import behaviours
from pbprompt.testing.fits import fitted, probabilities, random_images, tiny_dino, tiny_resnet, tiny_vit
from pbprompt.vision.towers.several import Several

ABLE = ("conjugate", "linear-probe", "nearest-mean", "nearest-neighbours", "zeroshot")
CHECKS = [
    behaviours.is_a_function_of_its_seed,
    behaviours.saves_and_loads,
    behaviours.takes_new_names_or_refuses,
    behaviours.keeps_classes_as_they_are,
    behaviours.keeps_classes_of_one_name_apart,
    behaviours.takes_a_class_without_images_or_names_it,
]


@cache
def several() -> Several:
    return Several([tiny_vit(), tiny_resnet(), tiny_dino()])


def tuned() -> TunedModel:
    method = fitted(find_method("conjugate"), {}, several())
    return TunedModel(method, describe_model(method))


def test_these_see_by_several_and_the_others_say_which_do():
    assert tuple(name for name, kind in methods().items() if kind.takes_several) == ABLE
    for name in sorted(set(methods()) - set(ABLE)):
        with pytest.raises(
            InputError, match=f"sees by one backbone: give one, or use one of {', '.join(ABLE)}"
        ):
            fitted(find_method(name), {}, several())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ABLE)
def test_conforms(monkeypatch, name, check):
    monkeypatch.setattr(behaviours, "tiny_vit", several)
    check(find_method(name))


def test_each_says_what_it_adds():
    sources = tuned().method.fitted.sources(random_images(several()).images)
    said = [f"{what} ({tower})" for tower in ("tiny-vit", "tiny-resnet", "tiny-dino") for what in ("name",)]
    assert set(said) <= set(sources)
    assert not sources["name (tiny-dino)"].any()  # it reads none


def test_a_saved_model_finds_each_of_its_backbones(tmp_path):
    model, images = tuned(), random_images(several())
    model.save(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [one["name"] for one in about["backbones"]] == ["tiny-vit", "tiny-resnet", "tiny-dino"]
    loaded = TunedModel.load(tmp_path / "model", Several([tiny_vit(), tiny_resnet(), tiny_dino()]))
    assert torch.equal(probabilities(loaded.method, images), probabilities(model.method, images))
    with pytest.raises(InputError, match="tuned on tiny-vit with other weights than these"):
        TunedModel.load(tmp_path / "model", Several([tiny_resnet(), tiny_vit(), tiny_dino()]))
    with pytest.raises(
        InputError, match=r"tiny-vit \+ tiny-resnet \+ tiny-dino: give 3, in this order, not 1"
    ):
        TunedModel.load(tmp_path / "model", tiny_vit())
    with pytest.raises(InputError, match="unknown backbone 'tiny-vit'"):
        TunedModel.load(tmp_path / "model")
    assert "`tiny-resnet`" in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.usefixtures("one_onnx_registry")
def test_is_exported_as_one_file(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = tuned()
    written = export_onnx(model, tmp_path / "model.onnx")
    assert written.difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    facts = json.loads(session.get_modelmeta().custom_metadata_map["pbprompt"])
    assert [one["name"] for one in facts["backbones"]] == ["tiny-vit", "tiny-resnet", "tiny-dino"]
    assert [square["size"] for square in facts["preprocessing"]["squares"]] == [32, 64]
    canvas = np.random.default_rng(0).integers(0, 256, (2, 96, 64, 3), dtype=np.uint8)
    said = session.run(["probabilities"], {"image": canvas})[0]
    seen = several().image(torch.from_numpy(canvas).permute(0, 3, 1, 2) / 255)
    np.testing.assert_allclose(said, model.predict(seen).probabilities.numpy(), atol=1e-4)
