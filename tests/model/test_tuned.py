"""The tuned model: fitted, saved, loaded, extended and asked, always the same model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from calibrated import calibrated_by
from PIL import Image

from pbprompt.apps.batch import BatchJob, answers
from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.evaluate import calibrate_and_evaluate, check_temperature, evaluate
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "car")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A dataset of noise: four training, two validation and one test image per class."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)

    def items(split: str, count: int) -> tuple[Item, ...]:
        made = []
        for number in range(count):
            path = f"{split}-{number}.png"
            Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(root / path)
            made.append(Item(path, number % 3))
        return tuple(made)

    return Dataset("noise", root, CLASSES, items("train", 12), items("val", 6), items("test", 3))


@pytest.fixture(scope="module")
def bank(tiny_vit, tmp_path_factory):
    return FeatureCache(tiny_vit, cache=tmp_path_factory.mktemp("features"), progress=False)


@pytest.fixture(scope="module")
def model(photos, bank):
    kind = find_method("coop")
    config = make_config(kind, overrides=["epochs=1"])
    few = draw(photos, 2, 1).apply(photos)
    model = TunedModel.fit(few, bank, kind, config, FitOptions(seed=3, progress=False), samples=2)
    return calibrate_and_evaluate(model, few, bank)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return Encoded(torch.randn(5, 32, generator=generator), torch.randn(5, 4, 32, generator=generator))


def test_fit_says_what_it_was_made_of(model, photos):
    assert model.classes == CLASSES and model.info.seed == 3 and model.info.shots == 2
    assert model.info.data.content_hash == photos.content_hash and model.info.data.draw_hash
    assert model.terms["total"] > 0
    assert model.info.metrics["split"] == "test" and model.info.metrics["images"] == 3


def test_the_calibration_is_of_images_that_were_not_trained_on(model, photos, bank):
    assert model.calibration == calibrated_by(model.predictor, bank.encode(photos.root, photos.val))
    assert model.calibrated
    as_training = photos.__class__("noise", photos.root, CLASSES, photos.train, photos.train[:6], photos.test)
    again = calibrate_and_evaluate(model, as_training, bank, figures=False)
    assert again.calibration is None and not again.calibrated and not again.info.metrics


def test_neither_calibration_nor_figures_are_of_images_that_a_method_chose_by(photos, bank):
    kind = find_method("tip-adapter")
    config, few = make_config(kind, overrides=["search_alpha=3"]), draw(photos, 1, 1).apply(photos)
    fitted = TunedModel.fit(few, bank, kind, config, FitOptions(progress=False), samples=1)
    assert len(few.val) == 3 and len(calibrate_and_evaluate(fitted, few, bank).calibration) == 3
    without = photos.__class__("noise", photos.root, CLASSES, photos.train, photos.val)
    assessed = calibrate_and_evaluate(fitted, without, bank)
    assert assessed.calibration is None and not assessed.info.metrics


def test_save_and_load(model, images, tiny_vit, tmp_path):
    model.save(str(tmp_path / "model"))  # a string or a path
    assert TunedModel.load(str(tmp_path / "model"), tiny_vit).classes == CLASSES
    again = TunedModel.load(tmp_path / "model", tiny_vit, samples=2)
    assert again.info == model.info and again.calibration == model.calibration
    assert list(again.predict(images)) == list(model.predict(images))
    with pytest.raises(InputError, match="is a file"):
        model.save(tmp_path / "model" / "config.json")


def test_more_classes_leave_the_model_as_it_was(model, images):
    before = list(model.predict(images))
    more = model.with_classes(["bus"])
    assert more.classes == (*CLASSES, "bus") and list(more.predict(images)[0].scores) == list(more.classes)
    assert not more.calibrated and not more.info.metrics  # nothing was measured with the new class
    assert model.classes == CLASSES and list(model.predict(images)) == before
    same = more.for_classes(CLASSES)
    assert list(same.predict(images)) == before


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("bus", "give a list"),
        ([CLASSES[0].upper()], "is there already"),
        (["bus", "Bus"], "is there already"),
    ],
)
def test_names_that_cannot_be_added(model, names, says):
    with pytest.raises(InputError, match=says):
        model.with_classes(names)


def test_a_model_is_shown_in_a_line(model):
    shown = (
        f"TunedModel('{model.info.method}', backbone='{model.info.backbone['name']}', {len(CLASSES)} classes)"
    )
    assert repr(model) == shown


def test_rules(model, images):
    rule = model.rule(0.5, 0.5)
    assert rule.threshold == model.calibration.threshold(0.5)
    assert rule.quantile == model.calibration.quantile(0.5)
    said = model.predict(images, rule)
    assert all(one.unsure is not None and one.prediction_set for one in said)
    plain = TunedModel(model.method, model.info)
    assert plain.predict(images, plain.rule())[0].unsure is None
    with pytest.raises(InputError, match="without validation images"):
        plain.rule(0.9)


def test_files_are_answered_in_order_and_bad_ones_named(model, photos, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    good = [photos.root / item.path for item in photos.test]
    asked = [good[0], bad, good[1], good[2]]
    found = list(answers(BatchJob.of(model, Stream(asked))))
    assert [one.name for one in found] == list(map(str, asked))
    assert isinstance(found[1].said, InputError) and "bad.png" in str(found[1].said)
    pixels = [model.backbone.preprocess(Image.open(path)) for path in good]
    exact = model.predict(model.encode(pixels))
    said = [one.said for one in found if not isinstance(one.said, InputError)]
    for one, other in zip(said, exact, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_zero_shot_is_a_model_too(tiny_vit, images):
    model = TunedModel.zero_shot(tiny_vit, CLASSES)
    said = model.predict(images)[0].to_dict()
    assert said["epistemic"] == 0 and said["unsure"] is None and said["prediction_set"] is None
    assert list(model.predict(images)[0].to_dict(top_k=2)["scores"]) == [
        name for name, _ in model.predict(images)[0].likeliest(2)
    ]


def test_learning_on_is_a_fit_on_all(photos, bank, tiny_vit):
    kind = find_method("conjugate")
    config = make_config(kind)
    features = bank.encode(photos.root, photos.train)
    labels = [CLASSES[label] for label in features.labels.tolist()]
    whole = TunedModel.fit(photos, bank, kind, config, FitOptions(progress=False))
    known = [row for row, label in enumerate(labels) if label != "car"][:6]
    first = photos.__class__(
        "part", photos.root, CLASSES[:2], tuple(photos.train[row] for row in known), (), ()
    )
    part = TunedModel.fit(first, bank, kind, config, FitOptions(progress=False))
    rest = [row for row in range(len(labels)) if row not in known]
    more = features.subset(rest)
    learned = part.partial_fit(Encoded(more.global_, more.patches), [labels[row] for row in rest])
    assert learned.classes == CLASSES and part.classes == CLASSES[:2]
    test = bank.encode(photos.root, photos.test)
    for one, other in zip(
        *(m.predict(Encoded(test.global_, test.patches)) for m in (learned, whole)), strict=True
    ):
        assert one.scores == pytest.approx(other.scores, abs=2e-6)
        assert one.familiarity == pytest.approx(other.familiarity, abs=1e-6)


def test_a_method_that_cannot_learn_on_says_so(model, images):
    with pytest.raises(InputError, match="coop cannot learn on"):
        model.partial_fit(images, ["cat"] * 5)


def test_a_temperature_is_fitted_to_validation_images_and_kept(
    model, photos, bank, images, tiny_vit, tmp_path
):
    few = draw(photos, 2, 1).apply(photos)
    scaled = calibrate_and_evaluate(model, few, bank, temperature=True)
    assert scaled.info.temperature != 1 and model.info.temperature == 1
    val = bank.encode(photos.root, photos.val)
    assert scaled.calibration == calibrated_by(scaled.predictor, val) != model.calibration
    figures, others = (evaluate(one, photos, "val", bank)[0] for one in (scaled, model))
    assert figures["nll"] < others["nll"]
    assert scaled.info.metrics["nll"] != model.info.metrics["nll"]
    assert scaled.info.metrics["accuracy"] == model.info.metrics["accuracy"]
    scaled.save(tmp_path / "model")
    again = TunedModel.load(tmp_path / "model", tiny_vit, samples=2)
    assert again.info == scaled.info
    assert list(again.predict(images)) == list(scaled.predict(images)) != list(model.predict(images))
    assert f"temperature {scaled.info.temperature:.3f}" in (tmp_path / "model" / "README.md").read_text()
    assert again.with_classes(["zebra"]).info.temperature == scaled.info.temperature
    assert calibrate_and_evaluate(again, few, bank).info.temperature == scaled.info.temperature

    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0}))
    with pytest.raises(InputError, match="temperature is 0"):
        TunedModel.load(tmp_path / "model", tiny_vit)


def test_a_temperature_needs_validation_images_or_a_method_that_leaves_images_out(photos):
    without = photos.__class__("noise", photos.root, CLASSES, photos.train, (), photos.test)
    with pytest.raises(InputError, match="noise has no validation images, which a temperature is fitted to"):
        check_temperature(without, find_method("coop"))
    check_temperature(photos, find_method("coop"))
    check_temperature(without, find_method("conjugate"))


def test_prompts_are_drawn_once_for_all_that_is_made_of_a_model(photos, bank, images, monkeypatch):
    kind, drawn = find_method("pbprompt"), []
    plain = kind.class_features

    def counted(self, samples, generator):
        drawn.append(samples)
        return plain(self, samples, generator)

    config = make_config(kind, overrides=["epochs=1", "batch_size=6"])
    few = draw(photos, 2, 1).apply(photos)
    fitted = TunedModel.fit(few, bank, kind, config, FitOptions(progress=False), samples=3)
    monkeypatch.setattr(kind, "class_features", counted)
    model = calibrate_and_evaluate(fitted, few, bank, temperature=True)
    assert model.info.temperature != 1 and model.predict(images) != fitted.predict(images)
    assert drawn == [3]
    replace(model, seed=1).predict(images)
    model.for_classes(("cat", "car")).predict(images)
    assert drawn == [3, 3, 3]  # other prompts, and prompts of other classes
