"""The paired bootstrap against resampling item by item, and its interval against a known truth."""

import numpy as np
import pytest
from scipy.stats import norm

from pbprompt.evaluate.bootstrap import paired_bootstrap


def two_models(seed: int, n: int = 200, a: float = 0.7, b: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """Hits of two models on the same items: an item that is hard for one is harder for the other."""
    generator = np.random.default_rng(seed)
    shared = 0.5 * generator.random(n)
    return shared + 0.5 * generator.random(n) < a, shared + 0.5 * generator.random(n) < b


def test_agrees_with_drawing_the_items_one_by_one():
    a, b = two_models(0)
    generator = np.random.default_rng(1)
    drawn = generator.integers(0, len(a), size=(20_000, len(a)))
    means = (a.astype(float) - b)[drawn].mean(axis=1)
    found = paired_bootstrap(a, b, resamples=20_000, seed=2)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.interval == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.006)
    assert found.probability == pytest.approx((means > 0).mean() + (means == 0).mean() / 2, abs=0.01)


def test_agrees_with_the_normal_approximation_for_many_items():
    a, b = two_models(3, n=20_000, a=0.605)
    gaps = a.astype(float) - b
    deviation = gaps.std() / np.sqrt(len(gaps))
    found = paired_bootstrap(a, b, seed=4)
    expected = norm.interval(0.95, loc=gaps.mean(), scale=deviation)
    assert found.interval == pytest.approx(expected, abs=0.1 * deviation)
    assert found.probability == pytest.approx(norm.cdf(gaps.mean() / deviation), abs=0.015)


def test_the_interval_covers_the_true_difference_as_often_as_it_says():
    """A is right with probability 0.8 and B with 0.7, independently: the true difference is 0.1."""
    generator, covered = np.random.default_rng(5), 0
    for seed in range(200):
        a, b = generator.random(300) < 0.8, generator.random(300) < 0.7
        low, high = paired_bootstrap(a, b, resamples=400, seed=seed).interval
        covered += low <= 0.1 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_fractions_such_as_the_share_of_seeds_count_too():
    generator = np.random.default_rng(6)
    a, b = generator.integers(0, 4, 120) / 3, generator.integers(0, 4, 120) / 3
    means = (a - b)[generator.integers(0, 120, size=(20_000, 120))].mean(axis=1)
    found = paired_bootstrap(a, b, resamples=20_000)
    assert found.difference == pytest.approx((a - b).mean())
    assert found.interval == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.01)


def test_equal_models_tie_and_a_sweep_is_certain():
    hits = [True, False, True]
    assert paired_bootstrap(hits, hits, resamples=50) == (0.0, (0.0, 0.0), 0.5)
    assert paired_bootstrap([1, 1], [0, 0], resamples=50) == (1.0, (1.0, 1.0), 1.0)
    assert paired_bootstrap([0, 0], [1, 1], resamples=50) == (-1.0, (-1.0, -1.0), 0.0)


def test_thirds_that_cancel_are_a_tie():
    found = paired_bootstrap([1 / 3, 1 / 3, 2 / 3], [2 / 3 - 1 / 3, 1 - 2 / 3, 2 / 3], resamples=50)
    assert found.probability == 0.5


def test_the_seed_fixes_the_result_and_the_order_of_items_does_not_matter():
    a, b = two_models(7, n=60)
    found = paired_bootstrap(a, b, resamples=500, seed=8)
    assert paired_bootstrap(a[::-1], b[::-1], resamples=500, seed=8) == found
    assert paired_bootstrap(a, b, resamples=500, seed=9) != found


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([], [], "no correct_a given"),
        ([1, 0], [1], "correct_b must have one value for each of the 2 items"),
        ([1, 2], [1, 0], "correct_a must lie between 0 and 1"),
        ([1, np.nan], [1, 0], "NaN in correct_a"),
    ],
)
def test_wrong_input_is_refused(a, b, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(a, b)
