"""What a model sees of an image that is no square: chosen at fit, kept in the model, followed by all."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from pbprompt.apps.classifier import PromptClassifier
from pbprompt.apps.cli import app
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.towers.loading.load import load_backbone


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Wide ones whose centres are alike: what tells the classes apart is at the edges."""
    root = tmp_path_factory.mktemp("wide") / "photos"
    for name, colour in (("red", (220, 20, 20)), ("blue", (20, 20, 220))):
        (root / name).mkdir(parents=True)
        for place in range(4):
            image = Image.new("RGB", (300, 100), colour)
            image.paste((90 + place, 160, 90), (90, 0, 210, 100))
            image.save(root / name / f"{place}.png")
    return root


@pytest.mark.parametrize("framing", ["pad", "squash"])
def test_it_is_kept_and_followed(photos, tmp_path, monkeypatch, framing):
    monkeypatch.setenv("PBPROMPT_CACHE", str(tmp_path / "cache"))
    figures = {}
    for model, words in (("crop", ()), (framing, ("--framing", framing))):
        result = run("fit", photos, *words, "--out", tmp_path / model)
        assert result.exit_code == 0, result.output
        told = run("evaluate", tmp_path / model, photos, "--json")
        figures[model] = json.loads(told.stdout)["nll"]
        saved = TunedModel.load(tmp_path / model)
        assert saved.backbone.preprocess.fit == saved.method.given.preprocess.fit == model
    assert figures[framing] < 0.8 * figures["crop"]
    lite = load_backbone("lite")
    assert TunedModel.load(tmp_path / framing, lite).backbone.preprocess.fit == framing
    assert TunedModel.load(tmp_path / "crop", lite.framed("pad")).backbone.preprocess.fit == "crop"
    assert lite.preprocess.fit == "crop" and lite.framed("crop") is lite
    assert PromptClassifier.from_pretrained(tmp_path / framing).model_.backbone.preprocess.fit == framing


def test_another_word_is_refused_before_anything_is_read(photos, tmp_path):
    result = run("fit", photos, "--framing", "tiles", "--out", tmp_path / "model")
    assert result.exit_code != 0 and "choose crop, pad, squash" in str(result.exception or result.output)
