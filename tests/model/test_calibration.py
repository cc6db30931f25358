"""Thresholds from validation images, and the file that keeps them."""

import json
import math
from dataclasses import replace

import pytest
import torch
from calibrated import calibrated_by
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import put
from scipy.stats import binom

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.calibration import (
    Calibration,
    calibrate_left_out,
    calibration_text,
    chosen,
    read_calibration,
)
from pbprompt.model.metrics.conformal import conformal_quantile
from pbprompt.model.metrics.selective import few_errors, sure_threshold, times_as_many
from pbprompt.model.predictor import predictive
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.vision.features.cache import Features
from pbprompt.vision.towers.backbone import Encoded

shares = st.integers(1, 100).map(lambda percent: percent / 100)
quickly = settings(deadline=None, max_examples=150)


def made(answers) -> Calibration:
    """From (confidence, right) pairs; a wrong answer leaves the true class half the rest."""
    confidence, right = zip(*answers, strict=True)
    true = tuple(best if hit else min(best, (1 - best) / 2) for best, hit in answers)
    labels = ("cat",) * len(true)
    return Calibration(confidence, right, true, classes=5, classes_seen=4, samples=20, seed=0, labels=labels)


answers = st.tuples(st.integers(10, 50).map(lambda step: step / 50), st.booleans())
calibrations = st.lists(answers, min_size=1, max_size=40).map(made)


@quickly
@given(calibrations, shares)
def test_a_threshold_is_a_confidence_whose_images_reach_the_accuracy(calibration, accuracy):
    """What can be promised of others is reached by these in any case."""
    threshold = sure_threshold(calibration.confidence, calibration.right, min(accuracy, 0.99), 0.6)
    images, right = calibration.accepted(threshold)
    assert images == 0 if math.isinf(threshold) else threshold in calibration.confidence
    assert images == 0 or right / images >= min(accuracy, 0.99)


@quickly
@given(calibrations, st.sampled_from((0.6, 0.9)))
def test_so_few_errors_are_as_unlikely_as_is_promised(calibration, certainty):
    """Of an accuracy no better than asked for. (A higher threshold for more certainty is no property: the
    places where the sequence starts depend on the certainty too.)"""
    threshold = sure_threshold(calibration.confidence, calibration.right, 0.5, certainty)
    images, right = calibration.accepted(threshold)
    assert math.isinf(threshold) or few_errors(images, images - right, 0.5) <= 1 - certainty + 1e-12


def test_thresholds_by_hand():
    """0.9²² = 0.098: 22 images, all right, promise 90 %; a wrong one before that ends it."""
    calibration = made([(0.9, True)] * 22 + [(0.8, True)] + [(0.7, False)] * 20)
    assert calibration.threshold(0.9) == 0.8
    assert calibration.accepted(0.8) == (23, 23) and calibration.accepted(0.9) == (22, 22)
    assert calibration.threshold(0.95) == math.inf and calibration.accepted(math.inf) == (0, 0)
    assert made([(0.95, False)] + [(0.9, True)] * 22).threshold(0.9) == math.inf


def test_what_it_rests_on_is_said():
    assert GOOD.rests_on == "2 validation images"
    assert replace(GOOD, left_out=2).rests_on == "2 training images, each left out in turn"


def test_coverage_by_class_rests_on_the_true_classes():
    kept = replace(GOOD, labels=("cat", "dog"))
    assert kept.class_quantiles(("dog", "cat", "owl"), 0.5) == (
        conformal_quantile([kept.true[1]], 0.5),
        conformal_quantile([kept.true[0]], 0.5),
        math.inf,
    )


@pytest.mark.parametrize("accuracy", [0, 1, 1.01, 90, -1, math.nan])
def test_an_accuracy_is_a_share(accuracy):
    with pytest.raises(InputError, match="give a share between 0 and 1"):
        made([(0.9, True)]).threshold(accuracy)


def test_the_quantile_is_of_the_true_class():
    calibration = made([(0.9, True), (0.6, False), (0.8, True)])
    assert calibration.quantile(0.75).quantiles == (conformal_quantile([0.9, 0.2, 0.8], 0.75),)
    assert calibration.quantile(0.9).quantiles == (math.inf,)


def test_the_best_that_can_be_promised():
    calibration = made([(0.9, True)] * 30)
    assert calibration.promised(0.9) == (0.9, 0.9) and calibration.promised(0.95) == (0.92, 0.9)
    assert made([(0.9, True)] * 2).promised(0.9) == (0.0, math.inf)


def test_what_can_be_promised_for_how_many_images():
    calibration = made([(0.9, True)] * 30 + [(0.5, True)] * 20 + [(0.5, False)] * 10)
    assert all(one.threshold == calibration.threshold(one.accuracy) for one in calibration.promises)
    assert [one.accuracy for one in calibration.promises][-1] == 0.92
    assert calibration.instead(0.5) == (0.92, 0.9) and calibration.instead(0.9).accuracy == 0.75
    rows = [one.kept([0.95, 0.9, 0.5, 0.5], [1, 0, 1, 1]) for one in calibration.promises]
    assert [row["promised"] for row in chosen(rows)] == [0.9, 0.92]
    assert rows[-1] == {"promised": 0.92, "threshold": 0.9, "answered": 0.5, "right": 0.5}
    assert rows[0]["answered"] == 1 and rows[0]["right"] == 0.75
    assert calibration.promises[-1].kept([0.1], [True])["right"] is None


def test_how_many_times_as_many_images_a_promise_takes():
    """0.9¹¹ > 0.1 ≥ 0.9²²; at one error in ten no number promises more than 90 %."""

    def times(answers, accuracy: float) -> int:
        return times_as_many(*zip(*answers, strict=True), accuracy)

    assert times([(0.9, True)] * 11, 0.9) == 2 and times([(0.9, True)] * 22, 0.9) == 1
    assert times([(0.9, True)] * 18 + [(0.9, False)] * 2, 0.95) == 0


def test_images_of_a_series_count_as_one():
    """Twenty images of two series promise no more than two images do."""
    calibration = replace(
        made([(0.9, True)] * 40), groups=tuple(place // 20 for place in range(40)), left_out=20
    )
    assert len(calibration.single) == 2 and calibration.single.left_out == 1
    assert calibration.accepted(0.5) == (2, 2) and math.isinf(calibration.threshold(0.9))
    assert calibration.quantile(0.9).quantiles == (math.inf,)
    told = "20 validation images and 20 training images in 2 series, each series left out in turn"
    assert calibration.rests_on == told
    each = replace(made([(0.9, True)] * 40), groups=tuple(range(40)))
    assert each.threshold(0.9) == made([(0.9, True)] * 40).threshold(0.9)
    more = made([(0.6, False)] * 2)
    assert calibration.joined(more).groups[-3:] == (1, 2, 3)
    assert more.joined(calibration).groups[:3] == (0, 1, 2)
    with pytest.raises(ValueError, match="one value for each image"):
        replace(more, groups=(1,))


def test_left_out_images_beside_validation_images():
    given, left = made([(0.9, True)] * 2), replace(made([(0.6, False)] * 3), left_out=3)
    both = given.joined(left)
    assert len(both) == 5 and both.confidence[-3:] == left.confidence and both.labels == ("cat",) * 5
    assert both.rests_on == "2 validation images and 3 training images, each left out in turn"
    assert left.rests_on == "3 training images, each left out in turn" and both.classes_seen == 1


@pytest.mark.parametrize("shots", [4, 15])
def test_what_left_out_images_promise_holds_for_new_ones(tiny_vit, shots):
    """Classes drawn anew each time, Gaussian and overlapping: thresholds break their word no more often than
    told, and sets hold the true class, of all images and of the hardest fifth."""
    chance, runs, accuracy, coverage = torch.Generator().manual_seed(shots), 50, 0.85, 0.9
    classes, new, width = 6, 1500, tiny_vit.embed_dim
    broken, promised, held, hard = 0, 0, [], []
    for _ in range(runs):
        means = torch.randn(classes, width, generator=chance)

        def drawn(labels, means=means):
            noise = torch.randn(len(labels), width, generator=chance)
            x = means[labels] + 0.9 * width**0.5 / 2 * noise / 2
            return Encoded(x, x.unsqueeze(1))

        method = build_method(Conjugate, ConjugateConfig(prior="none"), tiny_vit, seed=0)
        method.prepare([f"class {place}" for place in range(classes)], "{}")
        labels = torch.arange(classes).repeat(shots)
        method.begin(drawn(labels), labels)
        predictor = predictive(method)
        calibration = calibrate_left_out(predictor)
        assert calibration.left_out == len(calibration) == len(labels)
        truth = torch.randint(classes, (new,), generator=chance)
        said = predictor(drawn(truth)).probabilities
        top = said.max(1)
        right = top.indices == truth
        share, threshold = calibration.promised(accuracy)
        accepted = top.values >= threshold
        promised += bool(accepted.any())
        broken += bool(accepted.any()) and float(right[accepted].double().mean()) < share
        quantile = torch.from_numpy(calibration.quantile(coverage)(top.values.numpy())).unsqueeze(1)
        likely = (1 - said <= quantile) | (said == top.values.unsqueeze(1))
        inside = likely.gather(1, truth.unsqueeze(1)).squeeze(1).double()
        held.append(float(inside.mean()))
        hard.append(float(inside[top.values <= top.values.quantile(0.2)].mean()))
    assert broken <= binom.ppf(0.999, runs, 0.1)
    assert promised > 0.8 * runs
    assert sum(held) / runs > coverage - 0.01
    if shots > 4:  # as few as 24 images are all of one difficulty
        assert sum(hard) / runs > coverage - 0.02


def test_calibrate_is_what_the_predictor_says(tiny_vit):
    method = build_method(PBPrompt, make_config(PBPrompt, overrides=["initial_std=0.2"]), tiny_vit, seed=1)
    method.prepare(("cat", "dog", "car", "bus"), "a {}.")
    generator = torch.Generator().manual_seed(0)
    features = Features(
        torch.randn(30, 32, generator=generator),
        torch.randn(30, 3, 32, generator=generator).half(),
        torch.randint(3, (30,), generator=generator),
    )
    predictor = predictive(method, samples=6, seed=4)
    found = calibrated_by(predictor, features)
    assert (found.classes, found.classes_seen, found.samples, found.seed) == (4, 3, 6, 4)
    assert found.labels == tuple(method.classes[label] for label in features.labels.tolist())
    assert found.left_out == 0
    for at, label in enumerate(features.labels.tolist()):
        row = predictor(Encoded(features.global_[at : at + 1], features.patches[at : at + 1])).probabilities
        scores = row.squeeze(0).tolist()
        assert found.confidence[at] == pytest.approx(max(scores), abs=2e-6)
        assert found.right[at] == (scores.index(max(scores)) == label)
        assert found.true[at] == pytest.approx(scores[label], abs=2e-6)
    assert all(value == round(value, 6) for value in found.confidence + found.true)
    assert 0 < sum(found.right) < 30


@quickly
@given(calibrations)
def test_the_file_gives_back_what_was_written(tmp_path_factory, calibration):
    folder = tmp_path_factory.mktemp("model")
    put(folder, "calibration.json", calibration_text(calibration))
    assert read_calibration(folder) == calibration
    values = json.loads((folder / "calibration.json").read_text())
    assert values["images"] == len(calibration) == len(values["true"])


def test_no_file_is_no_calibration(tmp_path):
    assert read_calibration(tmp_path) is None


GOOD = made([(0.9, True), (0.6, False)])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"format": "other"}, "another format"),
        ({"version": 1}, "another format"),
        ({"images": 3}, "images is 3, but there are 2"),
        ({"images": "drop"}, "images"),
        ({"confidence": [0.9]}, "one value for each image"),
        ({"confidence": []}, "one value for each image"),
        ({"confidence": [0.9, 1.2]}, "0 ≤ true ≤ confidence ≤ 1"),
        ({"confidence": [0.9, math.nan]}, "0 ≤ true ≤ confidence ≤ 1"),
        ({"confidence": [0.9, "sure"]}, "it takes float"),
        ({"true": [0.9, 0.7]}, "0 ≤ true ≤ confidence ≤ 1"),
        ({"true": None}, "it takes tuple"),
        ({"right": [1, 0]}, "it takes bool"),
        ({"right": "drop"}, "right"),
        ({"samples": 0}, "counts"),
        ({"samples": 2.5}, "it takes int"),
        ({"classes": 3}, "counts"),
        ({"surprise": 1}, "surprise"),
        ({"labels": ["cat"]}, "must have one value"),
        ({"labels": "drop"}, "labels"),
        ({"left_out": 3}, "left_out must be counts"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason_and_the_remedy(tmp_path, values, why):
    damaged = json.loads(calibration_text(GOOD)) | values
    kept = {key: value for key, value in damaged.items() if value != "drop"}
    put(tmp_path, "calibration.json", json.dumps(kept))
    with pytest.raises(
        InputError, match=r"calibration.json: not a calibration .*: fit the model again"
    ) as error:
        read_calibration(tmp_path)
    assert why in str(error.value) and "\n" not in str(error.value)


@quickly
@given(cut=st.integers(0, 300), noise=st.binary(max_size=4))
def test_what_is_no_json_is_one_line_of_error(tmp_path_factory, cut, noise):
    folder = tmp_path_factory.mktemp("model")
    whole = calibration_text(GOOD).encode()
    put(folder, "calibration.json", whole[: cut % (len(whole) - 3)] + noise)
    with pytest.raises(InputError, match=r"calibration\.json") as error:
        read_calibration(folder)
    assert "\n" not in str(error.value)


def test_impossible_answers_are_refused():
    with pytest.raises(ValueError, match="one value for each image"):
        replace(GOOD, right=(True,))
    with pytest.raises(ValueError, match="0 ≤ true"):
        replace(GOOD, true=(0.95, 0.1))


def test_a_promise_of_use_is_taken_where_the_one_asked_for_cannot_be_given():
    """95 % can be promised of a sixth of the images, 80 % of all but the worst."""
    answers = [(0.99, True)] * 60 + [(0.8, True)] * 220 + [(0.8, False)] * 45 + [(0.3, False)] * 35
    calibration = made(answers)
    assert math.isinf(calibration.threshold(0.97))
    promised = calibration.promised(0.97)
    assert promised.threshold == 0.8 and promised.accuracy == 0.83
    assert calibration.promises[-1].accuracy > 0.9  # of fewer than a quarter of them
    trade = {row["promised"]: row for row in calibration.trade}
    assert trade[0.83] == {"promised": 0.83, "threshold": 0.8, "answered": 325 / 360, "right": 280 / 325}
