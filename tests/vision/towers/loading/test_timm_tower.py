"""timm's models by name: through a module with its interface, since the suite has no torchvision."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_timm import fake_timm, random_trunk, write_timm
from safetensors.torch import load_file, save_file
from siglip_folder import change

from pbprompt.errors import InputError
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.testing.fits import fitted, probabilities, random_images
from pbprompt.vision.towers.loading.load import load_backbone

KINDS = {"tiny_conv": (24, 4), "tiny_vit": (24, 4), "tiny_wide": (40, 1)}  # width, side of the grid


@pytest.fixture(autouse=True)
def timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", fake_timm())


@pytest.mark.parametrize("name", KINDS)
def test_the_image_is_what_timm_gives_without_its_classifier(name, tmp_path):
    tower = load_backbone(write_timm(tmp_path, name))
    whole = random_trunk(name, 10)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        seen = tower.image(x)
        assert torch.allclose(whole.head(seen.global_), whole(x), atol=1e-5)
    width, side = KINDS[name]
    assert tower.embed_dim == width and tower.grid == (side, side)
    assert seen.patches.shape == (2, side * side, width)
    if name == "tiny_conv":
        assert torch.allclose(seen.patches.mean(1), seen.global_, atol=1e-5)
    assert not tower.reads_text and not list(tower.parameters()) and not tower.training


def test_images_are_prepared_as_timm_evaluates(tmp_path):
    see = load_backbone(write_timm(tmp_path)).preprocess
    assert (see.size, see.fit, see.interpolation, see.resize) == (32, "crop", "bilinear", 35)
    assert see.mean == (0.485, 0.456, 0.406)
    squashed = load_backbone(write_timm(tmp_path, crop_pct=1.0, crop_mode="squash")).preprocess
    assert (squashed.fit, squashed.resize) == ("squash", None)


@pytest.mark.parametrize("name", ["tiny_conv", "tiny_vit"])
def test_in_half_precision_and_in_a_saved_model(name, tmp_path):
    folder = write_timm(tmp_path / "timm", name)
    half = load_backbone(folder, dtype=torch.float16)
    assert half.dtype == torch.float16 and half.image(torch.zeros(1, 3, 32, 32)).global_.isfinite().all()
    tower = load_backbone(folder)
    method, images = fitted(find_method("conjugate"), {}, tower), random_images(tower)
    TunedModel(method, describe_model(method)).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model").method
    assert torch.equal(probabilities(method, images), probabilities(loaded, images))


def changed(**content: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **content)


def told(**about: object) -> Callable[[Path], None]:
    return lambda folder: write_timm(folder, **about) and None


def without(key: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        del state[key]
        save_file(state, folder / "model.safetensors")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed(architecture="no_such_net"), "timm 0.0 cannot build 'no_such_net' (Unknown model"),
        (changed(architecture="tiny_vit"), "not those of timm's 'tiny_vit' (cls_token is missing"),
        (changed(architecture="tiny_unpooled"), "no single vector"),
        (changed(model_args={"depth": 3}), "cannot build 'tiny_conv'"),
        (without("norm.running_mean"), "(norm.running_mean is missing"),
        (told(classifier=None), "(head.bias is missing, unknown"),
        (told(name="tiny_vit", input_size=[3, 48, 48]), "takes no images of 48 pixels"),
        (told(input_size=[3, 32, 48]), "input_size is [3, 32, 48]"),
        (told(input_size=[1, 32, 32]), "input_size is [1, 32, 32]"),
        (told(interpolation="lanczos"), "interpolation is 'lanczos'; known are bicubic, bilinear"),
        (told(crop_pct=2), "crop_pct is 2"),
        (told(crop_mode="border"), "crop_mode is 'border'"),
        (told(mean=[0.5]), "mean is [0.5]"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, spoil, message):
    folder = write_timm(tmp_path)
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    said = str(caught.value)
    assert message in said and "\n" not in said and len(said) < 400


def test_without_timm_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match=r"config\.json: needs timm; run pip install .*timm"):
        load_backbone(write_timm(tmp_path))


def test_a_timm_that_cannot_be_imported_is_explained(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="nms does not exist"):
        load_backbone(write_timm(tmp_path / "model"))
