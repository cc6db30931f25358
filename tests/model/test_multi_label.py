"""A multi-label model: from fit to answers, to disk and back, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_files import put
from safetensors.torch import load, save
from scipy.stats import entropy

from pbprompt.apps.batch import BatchJob, answers
from pbprompt.apps.classifier.tuning import GivenFeatures
from pbprompt.errors import InputError, NoNumberError
from pbprompt.evidence.learners import MultiLabel
from pbprompt.learners.fit_options import FitOptions
from pbprompt.model.card import model_card, threshold_words
from pbprompt.model.evaluate import calibrate_and_evaluate, evaluate
from pbprompt.model.folder import describe_model
from pbprompt.model.learn import targets
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method, methods
from pbprompt.testing.fits import tiny_dino
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Encoded

CONJUGATE = find_method("conjugate")
CLASSES = ("beach", "dog", "snow")


def few(labels: torch.Tensor, start: int = 0) -> tuple[Item, ...]:
    """Images whose paths are their rows among all features."""
    return tuple(
        Item(str(start + row), 0, labels=tuple(has.nonzero().flatten().tolist()))
        for row, has in enumerate(labels)
    )


def fitted(dataset, bank, kind=CONJUGATE, config=None) -> TunedModel:
    return TunedModel.fit(dataset, bank, kind, config or kind.Config(), FitOptions(progress=False))


@pytest.fixture(scope="module")
def problem(tiny_vit) -> tuple[Dataset, GivenFeatures]:
    """Forty training images and twenty to test on: each label adds a direction of its own."""
    generator = torch.Generator().manual_seed(0)
    has = torch.rand(60, 3, generator=generator) < 0.4
    directions = torch.randn(3, tiny_vit.embed_dim, generator=generator)
    x = has.float() @ directions + 0.5 * torch.randn(60, tiny_vit.embed_dim, generator=generator)
    dataset = Dataset("toys", Path(), CLASSES, few(has[:40]), test=few(has[40:], 40), multi_label=True)
    return dataset, GivenFeatures(tiny_vit, Encoded(x, x[:, None]))


@pytest.fixture(scope="module")
def model(problem) -> TunedModel:
    return calibrate_and_evaluate(fitted(*problem), *problem)


def test_labels_are_given_by_their_thresholds(model, problem):
    figures = model.info.metrics
    assert figures["map"] > 0.9 and figures["micro"]["f1"] > 0.8 and figures["split"] == "test"
    assert figures["map"] > figures["zero_shot_map"]
    for said in model.predict(problem[1].images):
        given = [name for name, score in said.scores.items() if score >= model.thresholds[name]]
        assert set(said.labels) == set(given) and list(said.scores) == list(CLASSES)
        scores = [said.scores[name] for name in said.labels]
        assert scores == sorted(scores, reverse=True)
        assert said.to_dict() == {"labels": list(said.labels), "scores": said.scores, "nothing": False}
    assert any(not said.labels for said in model.predict(problem[1].images))


def test_what_is_decided_is_what_is_counted(model, problem):
    dataset, bank = problem
    figures, answers = evaluate(model, dataset, "train", bank)
    said = model.predict(Encoded(*(part[:40] for part in bank.images)))
    assert figures["labels_given"] == sum(len(one.labels) for one in said)
    wrong = answers.mistakes(0, missed=True, most=99), answers.mistakes(0, missed=False, most=99)
    for row in range(40):
        given, has = "beach" in said[row].labels, 0 in dataset.train[row].labels
        assert [row in rows for rows in wrong] == [has and not given, given and not has]


def test_doubt_is_summed_over_the_labels(model, problem):
    for said in model.predict(problem[1].images):
        doubt = sum(entropy([p, 1 - p]) for p in said.scores.values())
        assert said.entropy == pytest.approx(doubt, abs=1e-3) and said.label == said.likeliest(1)[0][0]
        assert said.epistemic == 0 and said.unsure is None and said.prediction_set is None


def test_the_same_after_a_round_trip(model, problem, tmp_path):
    model.save(str(tmp_path / "model"), "toy model")
    again = TunedModel.load(str(tmp_path / "model"), model.backbone)
    assert again.info == model.info and again.thresholds == model.thresholds
    assert list(again.predict(problem[1].images)) == list(model.predict(problem[1].images))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "conjugate, multi-label, on toys" in card and f"{model.info.metrics['map']:.2%}" in card
    assert "pbprompt predict IMAGE --model 'toy model'" in card
    assert again.multi_label and not TunedModel.zero_shot(model.backbone, CLASSES).multi_label


def test_what_needs_a_single_label_model_refuses_in_a_sentence(model, problem):
    for ask in (
        lambda: model.predictor,
        lambda: model.with_classes(["sea"]),
        lambda: model.for_classes(["sea", "beach"]),
        lambda: model.with_left_out(),
    ):
        with pytest.raises(InputError, match="the model of toys is multi-label, and this needs a single-lab"):
            ask()
    with pytest.raises(InputError, match="a multi-label model cannot learn on: fit it again"):
        model.partial_fit(problem[1].images, ["beach"] * 60)
    single = Dataset("plain", Path(), CLASSES, test=(Item("0", 0),))
    with pytest.raises(InputError, match="plain is single-label, and the model multi-label"):
        evaluate(model, single, "test", problem[1])
    zero = TunedModel.zero_shot(model.backbone, CLASSES)
    with pytest.raises(InputError, match="makes it multi-label, which this cannot use"):
        evaluate(zero, problem[0], "test", problem[1])


def test_a_damaged_head_is_named(model, tmp_path):
    folder = tmp_path / "model"
    model.save(folder)
    whole = load((folder / "model.safetensors").read_bytes())
    cut, bare = {**whole, "bias": whole["bias"][:2]}, {"weight": whole["weight"]}
    for state in (cut, bare, {**whole, "bias": whole["bias"] / 0}):
        put(folder, "model.safetensors", save(state))
        with pytest.raises(InputError, match=r"model\.safetensors"):
            TunedModel.load(folder, model.backbone)


@pytest.mark.parametrize(
    "name", [name for name, kind in methods().items() if not issubclass(kind, MultiLabel)]
)
def test_methods_of_one_label_refuse_and_name_the_others(problem, name):
    with pytest.raises(InputError, match="is single-label: to fit a multi-label table, use conjugate"):
        fitted(*problem, find_method(name))


def test_labels_that_say_nothing(problem):
    dataset, bank = problem
    always = replace(dataset, train=tuple(replace(one, labels=(0,)) for one in dataset.train))
    with pytest.raises(InputError, match="every training image has the label 'beach'"):
        fitted(always, bank, CONJUGATE)
    never = replace(dataset, train=tuple(replace(one, labels=one.labels[:1]) for one in dataset.train))
    never = replace(never, classes=(*CLASSES, "sea"))
    assert fitted(never, bank, CONJUGATE).head.positives[3] == 0  # known by its name
    with pytest.raises(InputError, match="no training image has the label 'sea', and conjugate"):
        fitted(never, bank, CONJUGATE, CONJUGATE.Config(prior="none"))
    with pytest.raises(InputError, match="has 1 training images: give two or more"):
        fitted(replace(dataset, train=dataset.train[:1]), bank, CONJUGATE)


def test_labels_of_other_data_are_found_by_name(model, problem):
    dataset, bank = problem
    place = {0: 2, 1: 1, 2: 0}
    turned = replace(
        dataset,
        classes=("Snow", "dog", "beach"),
        test=tuple(replace(one, labels=tuple(place[label] for label in one.labels)) for one in dataset.test),
    )
    assert evaluate(model, turned, "test", bank)[0] == evaluate(model, dataset, "test", bank)[0]
    with pytest.raises(InputError, match="does not know the label 'dogs'"):
        evaluate(model, replace(dataset, classes=("beach", "dogs", "snow")), "test", bank)
    with pytest.raises(InputError, match="toys has no val images"):
        evaluate(model, dataset, "val", bank)


def test_features_that_are_no_numbers_have_no_answer(model):
    bad = torch.full((1, model.backbone.embed_dim), float("nan"))
    with pytest.raises(NoNumberError):
        model.predict(Encoded(bad, bad[:, None]))


def test_unreadable_files_give_their_errors(model, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    ((name, said, _),) = answers(BatchJob.of(model, Stream([tmp_path / "a.png"])))
    assert name.endswith("a.png") and isinstance(said, InputError)


def test_an_image_tower_without_text_does_too(problem):
    dataset, bank = problem
    towers = tiny_dino()
    assert towers.embed_dim == bank.backbone.embed_dim
    bank = GivenFeatures(towers, bank.images)
    model = calibrate_and_evaluate(fitted(dataset, bank, CONJUGATE), dataset, bank)
    assert model.info.metrics["map"] > 0.9 and "zero_shot_map" not in model.info.metrics
    card = model_card(model.info, "model", thresholds=list(model.thresholds.values()))
    assert "| tuned |" in card and "names alone" not in card


def test_targets_and_the_description_of_a_model(model, problem):
    table = targets((Item("a", 0, labels=(0, 2)), Item("b", 0)), 3)
    assert table.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert model.info.data.images == 40 and model.info.multi_label
    shown = f"TunedModel('conjugate', backbone={model.backbone.config.name!r}, {len(model.classes)} labels)"
    assert repr(model) == shown
    assert not describe_model(CONJUGATE(CONJUGATE.Config(), model.backbone)).multi_label


def test_thresholds_in_words():
    assert threshold_words([0.281, 0.279]) == "0.28"
    assert threshold_words([0.2, 0.4]) == "0.20 to 0.40, depending on the label"
