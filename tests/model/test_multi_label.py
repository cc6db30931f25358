"""A model of several labels: from fit to answers, to disk and back, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_files import put
from safetensors.torch import load, save

from pbprompt.classifier.tuning import GivenFeatures
from pbprompt.clip.backbone import Encoded
from pbprompt.data.multi_label import LabelledImage, MultiLabelDataset
from pbprompt.errors import InputError, NoNumberError
from pbprompt.methods.abilities import MultiLabel, can
from pbprompt.model.folder import describe_model
from pbprompt.model.manifest import has_several_labels
from pbprompt.model.multi_label import MultiLabelModel, targets
from pbprompt.model.multi_label_card import least, multi_label_card
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method, methods
from pbprompt.testing.fits import tiny_dino

CONJUGATE = find_method("conjugate")
CLASSES = ("beach", "dog", "snow")


def few(labels: torch.Tensor, start: int = 0) -> tuple[LabelledImage, ...]:
    """Images whose paths are their rows among all features."""
    return tuple(
        LabelledImage(str(start + row), tuple(has.nonzero().flatten().tolist()))
        for row, has in enumerate(labels)
    )


@pytest.fixture(scope="module")
def problem(tiny_vit) -> tuple[MultiLabelDataset, GivenFeatures]:
    """Forty training images and twenty to test on: each label adds a direction of its own."""
    generator = torch.Generator().manual_seed(0)
    has = torch.rand(60, 3, generator=generator) < 0.4
    directions = torch.randn(3, tiny_vit.embed_dim, generator=generator)
    x = has.float() @ directions + 0.5 * torch.randn(60, tiny_vit.embed_dim, generator=generator)
    dataset = MultiLabelDataset("toys", Path(), CLASSES, few(has[:40]), test=few(has[40:], 40))
    return dataset, GivenFeatures(tiny_vit, Encoded(x, x[:, None]))


@pytest.fixture(scope="module")
def model(problem) -> MultiLabelModel:
    return MultiLabelModel.fit(problem[0], problem[1], CONJUGATE).checked(*problem)


def test_labels_are_given_by_their_thresholds(model, problem):
    figures = model.info.metrics
    assert figures["map"] > 0.9 and figures["micro"]["f1"] > 0.8 and figures["split"] == "test"
    assert figures["map"] > figures["zero_shot_map"]
    for said in model.predict(problem[1].images):
        given = [name for name, score in said.scores.items() if score >= model.thresholds[name]]
        assert set(said.labels) == set(given) and list(said.scores) == list(CLASSES)
        scores = [said.scores[name] for name in said.labels]
        assert scores == sorted(scores, reverse=True)
        assert said.to_dict() == {"labels": list(said.labels), "scores": said.scores}
    assert any(not said.labels for said in model.predict(problem[1].images))


def test_what_is_decided_is_what_is_counted(model, problem):
    dataset, bank = problem
    figures = model.evaluate(dataset, "train", bank)
    said = model.predict(Encoded(*(part[:40] for part in bank.images)))
    assert figures["labels_given"] == sum(len(one.labels) for one in said)


def test_the_same_after_a_round_trip(model, problem, tmp_path):
    model.save(str(tmp_path / "model"), "toy model")
    again = MultiLabelModel.load(str(tmp_path / "model"), model.backbone)
    assert again.info == model.info and again.thresholds == model.thresholds
    assert again.predict(problem[1].images) == model.predict(problem[1].images)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "several labels an image, on toys" in card and f"{model.info.metrics['map']:.2%}" in card
    assert "pbprompt predict IMAGE --model 'toy model'" in card
    assert has_several_labels(tmp_path / "model") and not has_several_labels(tmp_path)
    with pytest.raises(InputError, match="fitted to several labels an image, and this needs a model of one"):
        TunedModel.load(tmp_path / "model", model.backbone)


def test_a_damaged_head_is_named(model, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    whole = load((folder / "model.safetensors").read_bytes())
    cut, bare = {**whole, "bias": whole["bias"][:2]}, {"weight": whole["weight"]}
    for state in (cut, bare, {**whole, "bias": whole["bias"] / 0}):
        put(folder, "model.safetensors", save(state))
        with pytest.raises(InputError, match=r"model\.safetensors"):
            MultiLabelModel.load(folder, model.backbone)


def test_a_model_of_one_label_is_no_such_model(tiny_vit, tmp_path):
    TunedModel.zero_shot(tiny_vit, CLASSES).save(tmp_path / "one")
    with pytest.raises(InputError, match="fitted to one label an image: it is a TunedModel"):
        MultiLabelModel.load(tmp_path / "one", tiny_vit)


@pytest.mark.parametrize("name", [name for name, kind in methods().items() if not can(kind, MultiLabel)])
def test_methods_of_one_label_refuse_and_name_the_others(problem, name):
    with pytest.raises(InputError, match="takes one label an image: to fit several, use conjugate"):
        MultiLabelModel.fit(*problem, find_method(name))


def test_settings_may_take_the_ability_away(problem):
    config = CONJUGATE.Config(beside="pbprompt", epochs=1)
    with pytest.raises(InputError, match="conjugate with these settings takes one label an image"):
        MultiLabelModel.fit(*problem, CONJUGATE, config)


def test_labels_that_say_nothing(problem):
    dataset, bank = problem
    always = replace(dataset, train=tuple(replace(one, labels=(0,)) for one in dataset.train))
    with pytest.raises(InputError, match="every training image has the label 'beach'"):
        MultiLabelModel.fit(always, bank, CONJUGATE)
    never = replace(dataset, train=tuple(replace(one, labels=one.labels[:1]) for one in dataset.train))
    never = replace(never, classes=(*CLASSES, "sea"))
    assert MultiLabelModel.fit(never, bank, CONJUGATE).head.positives[3] == 0  # known by its name
    with pytest.raises(InputError, match="no training image has the label 'sea', and conjugate"):
        MultiLabelModel.fit(never, bank, CONJUGATE, CONJUGATE.Config(prior="none"))
    with pytest.raises(InputError, match="has 1 training images: give two or more"):
        MultiLabelModel.fit(replace(dataset, train=dataset.train[:1]), bank, CONJUGATE)


def test_labels_of_other_data_are_found_by_name(model, problem):
    dataset, bank = problem
    place = {0: 2, 1: 1, 2: 0}
    turned = replace(
        dataset,
        classes=("Snow", "dog", "beach"),
        test=tuple(replace(one, labels=tuple(place[label] for label in one.labels)) for one in dataset.test),
    )
    assert model.evaluate(turned, "test", bank) == model.evaluate(dataset, "test", bank)
    with pytest.raises(InputError, match="does not know the label 'dogs'"):
        model.evaluate(replace(dataset, classes=("beach", "dogs", "snow")), "test", bank)
    with pytest.raises(InputError, match="toys has no val images"):
        model.evaluate(dataset, "val", bank)


def test_features_that_are_no_numbers_have_no_answer(model):
    bad = torch.full((1, model.backbone.embed_dim), float("nan"))
    with pytest.raises(NoNumberError):
        model.predict(Encoded(bad, bad[:, None]))


def test_unreadable_files_give_their_errors(model, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    ((path, said),) = model.predict_files([tmp_path / "a.png"], progress=False)
    assert path.name == "a.png" and isinstance(said, InputError)


def test_an_image_tower_without_text_does_too(problem):
    dataset, bank = problem
    towers = tiny_dino()
    assert towers.embed_dim == bank.backbone.embed_dim
    bank = GivenFeatures(towers, bank.images)
    model = MultiLabelModel.fit(dataset, bank, CONJUGATE).checked(dataset, bank)
    assert model.info.metrics["map"] > 0.9 and "zero_shot_map" not in model.info.metrics
    card = multi_label_card(model.info, model.thresholds, "model")
    assert "| fitted |" in card and "names alone" not in card


def test_targets_and_the_description_of_a_model(model, problem):
    table = targets((LabelledImage("a", (0, 2)), LabelledImage("b", ())), 3)
    assert table.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert model.info.data["images"] == "40" and model.info.several_labels
    shown = (
        f"MultiLabelModel('conjugate', backbone={model.backbone.config.name!r}, {len(model.classes)} labels)"
    )
    assert repr(model) == shown
    assert not describe_model(CONJUGATE(CONJUGATE.Config(), model.backbone)).several_labels


def test_thresholds_in_words():
    assert least({"a": 0.281, "b": 0.279}) == "0.28"
    assert least({"a": 0.2, "b": 0.4}) == "0.20 to 0.40, depending on the label"
