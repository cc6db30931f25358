"""The tests of drift: exact where nothing has changed, one-sided, and as strong as the textbook's."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp

from pbprompt.model.metrics import drift
from pbprompt.model.metrics.drift import ORDERS, lower, other_shares


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
    monkeypatch.setattr(drift, "ORDERS", 199)
    chance, alarms = np.random.default_rng(1), []
    for seed in range(300):
        new, fit = (chance.normal(size=size) for size in sizes)
        rank = [(1 + np.searchsorted(np.sort(fit), one, side="right")) / (len(fit) + 1) for one in (new, fit)]
        labels = [chance.choice(list("aab"), size).tolist() for size in sizes]
        alarms.append([lower(*rank, seed=seed) <= 0.1, other_shares(*labels, seed=seed) <= 0.1])
    assert (np.mean(alarms, axis=0) < 0.1 + 3 * (0.1 * 0.9 / 300) ** 0.5).all()
    assert np.mean(alarms, axis=0)[0] > 0.02  # and not for want of power


def test_of_very_many_answers_some_are_compared(monkeypatch):
    monkeypatch.setattr(drift, "MOST", 50)
    chance = np.random.default_rng(0)
    assert lower(chance.random(5000) - 0.5, chance.random(50)) < 0.01
    assert other_shares(["a"] * 3000, ["b"] * 50) < 0.01
