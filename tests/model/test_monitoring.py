"""A model's answers in use beside those at fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, ks_2samp

from pbprompt.evidence.conjugate import Conjugate
from pbprompt.learners.method import build_method, make_config
from pbprompt.learners.predictive import rounded
from pbprompt.model import monitoring
from pbprompt.model.calibration import Calibration, calibrate_left_out, calibration_text, read_calibration
from pbprompt.model.manifest import ModelFiles
from pbprompt.model.monitoring import ORDERS, Answered, at_fit, class_shares, compare, lower, other_shares
from pbprompt.model.predictor import predictive
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("ant", "bee", "cat")


def cloud(width: int, count: int, seed: int, away: float = 0.0) -> tuple[Encoded, torch.Tensor]:
    """Features around three axes, or away from them."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    x = 4 * torch.eye(width)[labels] + torch.randn(count, width, generator=chance)
    x[:, 3] += 10 * away
    return Encoded(x, x[:, None]), labels


@pytest.fixture(scope="module")
def predictor(tiny_vit):
    method = build_method(Conjugate, make_config(Conjugate), tiny_vit, seed=0)
    method.prepare(CLASSES, "a photo of a {}.")
    method.begin(*cloud(tiny_vit.embed_dim, 90, seed=0))
    return predictive(method)


def answered(predictor, images: Encoded) -> Answered:
    said = predictor(images).numpy()
    labels = [CLASSES[place] for place in said.probabilities.argmax(1)]
    return Answered(labels, rounded(said.probabilities.max(1)), rounded(said.familiarity))


def test_what_was_left_out_is_kept_with_its_class_and_familiarity(predictor):
    found = calibrate_left_out(predictor)
    right = [one == other for one, other in zip(found.predicted, found.labels, strict=True)]
    assert tuple(right) == found.right
    ranks = np.sort(found.familiarity) * (len(found) + 1)
    assert ranks == pytest.approx(
        np.arange(2, len(found) + 2), abs=1e-3
    )  # each has its own, among the others


def test_drift_is_where_it_is(predictor, tiny_vit):
    calibration = calibrate_left_out(predictor)
    same = compare(calibration, answered(predictor, cloud(tiny_vit.embed_dim, 150, seed=1)[0]))
    away = compare(calibration, answered(predictor, cloud(tiny_vit.embed_dim, 60, seed=1, away=1)[0]))
    assert [one.share.partition(" ")[0] for one in same] == ["unfamiliar", "unsure", "class"]
    assert min(one.p_value for one in same) > 0.01
    assert away[0].p_value < 0.003 and away[0].now > 0.4 > away[0].at_fit
    one_class = cloud(tiny_vit.embed_dim, 60, seed=2)[0]
    only = answered(predictor, Encoded(one_class.global_[1::3], one_class.patches[1::3]))
    assert (
        compare(calibration, only)[2].share == "class bee" and compare(calibration, only)[2].p_value < 0.003
    )


def test_a_model_of_before_is_compared_by_what_it_has(predictor):
    before = Calibration((0.5,) * 40, (True,) * 40, (0.5,) * 40, 3, 1, 20, 0, ("ant",) * 40)
    found = compare(before, Answered(["ant"] * 30, [0.1] * 30, [0.5] * 30))
    assert [one.share for one in found] == ["unsure"] and found[0].p_value < 0.003


def test_one_of_a_series_counts():
    n = 20
    given = Calibration(
        (0.5,) * n, (True,) * n, (0.5,) * n, 2, 1, 20, 0, ("ant",) * n,
        groups=tuple(place // 2 for place in range(n)),
        predicted=("ant", "bee") * 10, familiarity=(0.2, 0.9) * 10,
    )  # fmt: skip
    kept = at_fit(given)
    assert len(kept.labels) == len(kept.familiarity) == 10
    assert {(label, share) for label, share in zip(kept.labels, kept.familiarity, strict=True)} <= {
        ("ant", 0.2),
        ("bee", 0.9),
    }
    both = given.joined(Calibration((0.5,), (True,), (0.5,), 2, 1, 20, 0, ("ant",), predicted=("ant",)))
    assert len(both.predicted) == n + 1 and both.familiarity == ()  # not known of all


def test_it_is_saved(predictor, tmp_path: Path):
    found = calibrate_left_out(predictor)
    files = ModelFiles(tmp_path, {}, {"calibration.json": calibration_text(found).encode()})
    assert read_calibration(files) == found


def test_shares_of_classes():
    now = Answered(["a", "b", "b", "b"], [1.0] * 4)
    assert class_shares(Answered(["a", "a", "c"], [1.0] * 3), now) == {
        "a": (2 / 3, 1 / 4),
        "b": (0, 3 / 4),
        "c": (1 / 3, 0),
    }


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2])
def test_lower_is_the_exact_test_of_kolmogorov_and_smirnov(shift):
    chance = np.random.default_rng(3)
    new, fit = chance.random(50) - shift, chance.random(70)
    exact = ks_2samp(new, fit, alternative="greater", method="exact").pvalue
    assert lower(new, fit) == pytest.approx(exact, abs=4 * (exact * (1 - exact) / ORDERS) ** 0.5 + 1 / ORDERS)


def test_what_is_higher_is_no_drift():
    chance = np.random.default_rng(0)
    assert lower(chance.random(80) + 0.5, chance.random(80)) > 0.9
    assert lower(chance.random(80) - 0.5, chance.random(80)) == 1 / (ORDERS + 1)


def test_equals_err_on_the_safe_side():
    assert lower([1.0] * 30, [1.0] * 30) == 1
    ranks = (1 + np.arange(1, 41)) / 41  # p-values of the images at fit among themselves
    assert lower(np.full(5, 1 / 41), ranks) < 0.01 and lower(np.full(5, 1.0), ranks) == 1


def test_shares_are_those_of_the_chi_squared_test():
    new, fit = ["a"] * 60 + ["b"] * 50 + ["c"] * 90, ["a"] * 50 + ["b"] * 50 + ["c"] * 50
    found = chi2_contingency([[60, 50, 90], [50, 50, 50]]).pvalue
    assert other_shares(new, fit) == pytest.approx(found, abs=0.02)
    assert other_shares(["d"] * 20, fit) == 1 / (ORDERS + 1)
    assert other_shares(fit, fit) == 1


@pytest.mark.parametrize("sizes", [(40, 9), (9, 40), (200, 60)])
def test_false_alarms_are_as_rare_as_stated(monkeypatch, sizes):
    """p-values of images at fit and of new ones, as the model makes them, from one distribution."""
    monkeypatch.setattr(monitoring, "ORDERS", 199)
    chance, alarms = np.random.default_rng(1), []
    for seed in range(300):
        new, fit = (chance.normal(size=size) for size in sizes)
        rank = [(1 + np.searchsorted(np.sort(fit), one, side="right")) / (len(fit) + 1) for one in (new, fit)]
        labels = [chance.choice(list("aab"), size).tolist() for size in sizes]
        alarms.append([lower(*rank, seed=seed) <= 0.1, other_shares(*labels, seed=seed) <= 0.1])
    assert (np.mean(alarms, axis=0) < 0.1 + 3 * (0.1 * 0.9 / 300) ** 0.5).all()
    assert np.mean(alarms, axis=0)[0] > 0.02  # and not for want of power


def test_of_very_many_answers_some_are_compared(monkeypatch):
    monkeypatch.setattr(monitoring, "MOST", 50)
    chance = np.random.default_rng(0)
    assert lower(chance.random(5000) - 0.5, chance.random(50)) < 0.01
    assert other_shares(["a"] * 3000, ["b"] * 50) < 0.01
