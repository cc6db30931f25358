"""What 0.2.0.dev0 wrote, before the package was regrouped: its models, its cache and its runs still load.

Beside each model's files, `expected.safetensors` has what that version said of four images.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pbprompt.model.tuned import TunedModel
from pbprompt.research.runs import RunStore
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

EARLIER = Path(__file__).with_name("earlier")
EXPECTED = load_file(EARLIER / "expected.safetensors")
IMAGES = Encoded(EXPECTED["images"], EXPECTED["images"].unsqueeze(1))


@pytest.fixture(scope="module")
def tower() -> Backbone:
    text = TextConfig(context_length=77, vocab_size=49408, width=16, heads=2, layers=1)
    return random_backbone(BackboneConfig("earlier", 8, VitConfig(32, 16, 16, 1, 2), text))


@pytest.mark.parametrize("name", ["conjugate", "prompts"])
def test_models_say_what_they_said(name, tower):
    model = TunedModel.load(EARLIER / name, tower)
    found = model.predictor(IMAGES)
    for part in ("probabilities", "entropy", "mutual_information", "spreads"):
        torch.testing.assert_close(
            getattr(found, part), EXPECTED[f"{name}/{part}"], rtol=1e-4, atol=1e-5, msg=part
        )
    assert model.classes == ("bird", "bug", "building") and model.info.metrics["images"] == 6


def test_multi_label_models_say_what_they_said(tower):
    found = TunedModel.load(EARLIER / "labels", tower).predict(IMAGES)
    scores = torch.tensor([list(one.scores.values()) for one in found])
    torch.testing.assert_close(scores, EXPECTED["labels/probabilities"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["conjugate", "prompts", "labels"])
def test_models_are_saved_again_with_all_that_they_knew(name, tower, tmp_path):
    TunedModel.load(EARLIER / name, tower).save(tmp_path / name)
    before, after = (json.loads((place / name / "config.json").read_text()) for place in (EARLIER, tmp_path))
    assert after["data"] == before["data"]
    assert after["files"]["model.safetensors"] == before["files"]["model.safetensors"]


def test_a_conjugate_model_learns_on(tower):
    model = TunedModel.load(EARLIER / "conjugate", tower)
    assert model.calibration and model.calibration.left_out == len(model.calibration)
    taught = model.partial_fit(IMAGES, ["bug", "bird", "moon", "moon"])
    assert taught.classes == (*model.classes, "moon") and taught.calibration


def test_the_cache_is_read(tower, tmp_path):
    shutil.copytree(EARLIER / "cache" / "features", tmp_path / "features")
    sample = open_dataset("sample:fluent")
    items = [item for label in range(3) for item in [one for one in sample.items if one.label == label][:5]]
    bank = FeatureCache(tower, cache=tmp_path / "features", progress=False)
    found = bank.encode(sample.root, items)
    assert bank.encoded == 0
    fresh = FeatureCache(tower, cache=tmp_path / "fresh", progress=False).encode(sample.root, items)
    torch.testing.assert_close(found.global_, fresh.global_, rtol=1e-4, atol=1e-5)


def test_runs_are_read():
    store = RunStore(EARLIER / "runs")
    (record,) = store.records()
    assert record.headline == "40.62" and len(store.arrays(record.id)["sample:fluent/label"]) == 160
