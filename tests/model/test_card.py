"""The model card: figures, commands and facts."""

import pytest

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.model.calibration import Calibration
from pbprompt.model.card import ModelInfo, Provenance, model_card
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item

FIGURES = {
    "split": "test",
    "accuracy": 0.8125,
    "nll": 0.7401,
    "ece": 0.0312,
    "images": 640,
    "zero_shot": {"accuracy": 0.5, "nll": 2.73, "ece": 0.138},
}


def info(**changes):
    facts = {
        "method": "pbprompt",
        "config": {"ct_weight": 0.01, "words": "a photo of a"},
        "classes": ("cat", "dog"),
        "template": "a photo of a {}.",
        "backbone": {"name": "lite", "activation": "quick_gelu", "fingerprint": "abc123"},
        "seed": 7,
        "shots": 4,
        "data": Provenance(dataset="toys", draw_hash="d1e2"),
        "metrics": FIGURES,
    }
    return ModelInfo(**(facts | changes))


def test_figures_beside_zero_shot():
    card = model_card(info(), "model")
    assert card.startswith("# pbprompt on toys\n")
    assert "| tuned | 81.25% | 0.740 | 3.12% |" in card
    assert "| zero-shot, same backbone | 50.00% | 2.730 | 13.80% |" in card
    assert "test split, 640 images" in card


def test_plain_classifiers_stand_beside_them():
    rivals = {"nearest-mean": {"accuracy": 0.75, "nll": 1.0, "ece": 0.1}}
    card = model_card(info(metrics={**FIGURES, "rivals": rivals}), "model")
    assert "| nearest-mean, same training images | 75.00% | 1.000 | 10.00% |" in card


def test_commands_name_the_folder():
    card = model_card(info(), "runs/one")
    assert "pbprompt predict IMAGE --model runs/one\n" in card
    assert "pbprompt predict IMAGE --model 'my model'\n" in model_card(info(), "my model")
    assert "pbprompt evaluate runs/one DATA" in card
    assert '--model runs/one --classes "a new class,another"' in card


def test_facts_and_settings():
    card = model_card(info(), "model")
    for fact in ("2 classes: cat, dog", "`abc123`", "seed 7", "draw hash: d1e2", "- `ct_weight`: 0.01"):
        assert fact in card
    assert "- `words`: 'a photo of a'" in card


def test_settings_of_training_are_those_of_methods_that_train():
    config = {"learning_rate": 0.002, "epochs": 0, "prior": "names"}
    assert "`learning_rate`: 0.002" in model_card(info(config=config), "model")
    card = model_card(info(config=config), "model", takes_steps=False)
    assert "`prior`: 'names'" in card and "learning_rate" not in card and "epochs" not in card
    assert card.endswith("## Settings\n\n- `prior`: 'names'\n")


def test_lite_is_said_not_to_be_clip():
    assert "`lite` is not CLIP: not comparable with papers on CLIP" in model_card(info(), "model")
    vit = {"name": "lite-vit", "activation": "quick_gelu", "fingerprint": "f"}
    assert "`lite-vit` is not CLIP" in model_card(info(backbone=vit), "model")
    clip = {"name": "ViT-B/16", "activation": "quick_gelu", "fingerprint": "f"}
    assert "not comparable" not in model_card(info(backbone=clip), "model")


def test_without_figures_there_is_no_table():
    card = model_card(info(metrics={}), "model")
    assert "accuracy" not in card and "pbprompt predict" in card


def test_thresholds_of_the_validation_split():
    confidence = tuple(round(1 - at / 100, 2) for at in range(50))
    right = tuple(at < 48 for at in range(50))
    true = tuple(best if hit else 0.0 for best, hit in zip(confidence, right, strict=True))
    calibration = Calibration(
        confidence, right, true, classes=3, classes_seen=2, samples=20, seed=0, labels=("a",) * len(true)
    )
    card = model_card(info(), "model", calibration)
    rows = [line for line in card.splitlines() if line.startswith("| 9")]
    assert rows == ["| 90% | 0.520 | 98.0% | 98.0% |", "| 95% | 0.530 | 96.0% | 100.0% |"]  # 99 % cannot be
    assert "certainty of 90%, judged by 50 validation images, of 2 of 3 classes" in card
    assert "--reject-at" not in model_card(info(), "model")


def test_many_classes_are_cut():
    card = model_card(info(classes=tuple(f"class {n}" for n in range(30))), "model")
    assert "30 classes: class 0," in card and "class 19, …" in card and "class 20" not in card


def test_names_mean_nothing_in_markdown():
    names = ("[a](http://x)", "<script>", "*b*|c", "two\nlines")
    card = model_card(info(classes=names, data=Provenance(dataset="# <b>")), "model")
    assert "4 classes: \\[a\\](http://x), \\<script\\>, \\*b\\*\\|c, two lines\n" in card
    assert "- dataset: \\# \\<b\\>" in card


@pytest.fixture
def dataset(tmp_path):
    items = tuple(Item(f"{n}.jpg", n % 2) for n in range(8))
    return Dataset("toys", tmp_path, ("cat", "dog"), items)


def test_facts_of_the_draw(dataset):
    drawn = draw(dataset, 1, seed=9)
    assert Provenance.of(drawn.apply(dataset)).to_dict() == {
        "dataset": "toys",
        "content_hash": dataset.content_hash,
        "draw_hash": drawn.hash,
        "draw_seed": 9,
        "shots": 1,
        "images": 2,
    }
    assert "draw_hash" not in Provenance.of(dataset).to_dict()


def test_there_and_back():
    told = Provenance(dataset="toys", options={"data": "photos"}, changes=("merged a and b",), unlabelled=3)
    assert from_dict(Provenance, told.to_dict(), "field") == told
    assert set(told.to_dict()) == {"dataset", "options", "changes", "unlabelled"}


def test_what_is_no_provenance_is_named():
    with pytest.raises(InputError, match="field 'to_try'"):
        from_dict(Provenance, {"to_try": 7}, "field")
