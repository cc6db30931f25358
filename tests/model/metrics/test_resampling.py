"""Paired differences against drawing images and seeds one by one; their interval against a known truth."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from pbprompt.model.metrics.resampling import (
    PairedDifference,
    image_counts,
    paired_average_difference,
    seed_shares,
    sign_test,
)


def two_models(seed: int, n: int = 200, a: float = 0.7, b: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """Hits of two models on the same items: an item that is hard for one is harder for the other."""
    generator = np.random.default_rng(seed)
    shared = 0.5 * generator.random((1, n))
    return shared + 0.5 * generator.random(n) < a, shared + 0.5 * generator.random(n) < b


def paired_difference(a: np.ndarray, b: np.ndarray, **options: int) -> PairedDifference:
    """On a single test set."""
    return paired_average_difference([[a]], [[b]], **options)


def test_one_draw_agrees_with_drawing_the_items_one_by_one():
    a, b = two_models(0)
    drawn = np.random.default_rng(1).integers(0, 200, size=(20_000, 200))
    means = (a.astype(float) - b)[0, drawn].mean(axis=1)
    found = paired_difference(a, b, resamples=20_000)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.interval == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.006)
    assert found.probability == pytest.approx((means > 0).mean() + (means == 0).mean() / 2, abs=0.01)


def test_h_agrees_with_drawing_the_items_of_both_halves_one_by_one():
    base, new = two_models(0, a=0.9, b=0.8), two_models(1, n=150, a=0.6, b=0.7)
    generator = np.random.default_rng(5)
    rows = [generator.integers(0, len(half[0][0]), size=(20_000, len(half[0][0]))) for half in (base, new)]

    def harmonic(b, n):
        return 2 * b * n / (b + n)

    drawn, means = [], []
    for model in (0, 1):
        b, n = (
            half[model].astype(float)[0][some].mean(1) for half, some in zip((base, new), rows, strict=True)
        )
        drawn.append(harmonic(b, n))
        means.append(harmonic(base[model].mean(), new[model].mean()))
    found = paired_average_difference([[base[0]], [new[0]]], [[base[1]], [new[1]]], resamples=20_000)
    gaps = drawn[0] - drawn[1]
    assert found.difference == pytest.approx(means[0] - means[1])
    assert found.interval == pytest.approx(tuple(np.quantile(gaps, [0.025, 0.975])), abs=0.006)
    assert found.probability == pytest.approx((gaps > 0).mean() + (gaps == 0).mean() / 2, abs=0.01)


def test_h_is_that_of_the_means_over_draws():
    base, new = np.array([[1, 1, 1, 0], [0, 0, 0, 0]]), np.array([[0, 0, 0, 0], [1, 1, 1, 0]])
    never = [[np.zeros((2, 4))], [np.zeros((2, 4))]]
    assert paired_average_difference([[base], [new]], never).difference == pytest.approx(0.375)
    assert paired_average_difference(never, never) == (0.0, (0.0, 0.0), 0.5)


@pytest.mark.parametrize("together", [False, True], ids=["own draws", "the same draws"])
def test_average_h_agrees_with_drawing_images_and_seeds_one_by_one(together):
    """Two datasets of three draws, base and new; H is of the averages."""
    generator, size = np.random.default_rng(8), 20_000
    sets = [[generator.random((2, 3, n)) < 0.7 for n in some] for some in ((40, 60), (90, 50))]  # [half][set]
    drawn = np.zeros((2, 2, size))  # model, half
    for place in (0, 1):
        if place == 0 or not together:
            shares = seed_shares(3, size, seed=11 + place)
        for half in (0, 1):
            hits = sets[half][place].astype(float)
            rows = generator.integers(0, hits.shape[-1], size=(size, hits.shape[-1]))
            for model in (0, 1):
                drawn[model, half] += (shares * hits[model][:, rows].mean(-1).T).sum(1) / 2
    h = 2 * drawn[:, 0] * drawn[:, 1] / drawn.sum(1)
    sides = [[[one[model] for one in places] for places in sets] for model in (0, 1)]
    found = paired_average_difference(*sides, draws=[0, 0] if together else None, resamples=size)
    means = [[np.mean([one.mean() for one in places]) for places in side] for side in sides]
    gap = [2 * base * new / (base + new) for base, new in means]
    assert found.difference == pytest.approx(gap[0] - gap[1])
    assert found.interval == pytest.approx(tuple(np.quantile(h[0] - h[1], [0.025, 0.975])), abs=0.006)


def test_agrees_with_the_normal_approximation_for_many_items():
    a, b = two_models(3, n=20_000, a=0.605)
    gaps = a.astype(float) - b
    deviation = gaps.std() / np.sqrt(gaps.size)
    found = paired_difference(a, b)
    expected = norm.interval(0.95, loc=gaps.mean(), scale=deviation)
    assert found.interval == pytest.approx(expected, abs=0.15 * deviation)
    assert found.probability == pytest.approx(norm.cdf(gaps.mean() / deviation), abs=0.02)


def test_the_interval_covers_the_true_difference_as_often_as_it_says():
    """A is right with probability 0.8 and B with 0.7, independently: the true difference is 0.1."""
    generator, covered = np.random.default_rng(5), 0
    for _ in range(200):
        a, b = generator.random((1, 300)) < 0.8, generator.random((1, 300)) < 0.7
        low, high = paired_difference(a, b, resamples=400).interval
        covered += low <= 0.1 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_draws_that_differ_widen_the_interval_by_their_own_spread():
    """Each draw moves A as a whole: images alone would call a difference sure that other draws reverse."""
    generator = np.random.default_rng(6)
    rates = np.array([[0.9], [0.7], [0.65]])
    a, b = generator.random((3, 4000)) < rates, generator.random((3, 4000)) < 0.7
    gaps = (a.astype(float) - b).mean(1)
    low, high = paired_difference(a, b).interval
    images_alone = paired_difference(a.mean(0, keepdims=True), b.mean(0, keepdims=True)).interval
    assert low < 0 < images_alone[0] < images_alone[1] < high
    error = gaps.std(ddof=1) / np.sqrt(3)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)


def test_equal_models_tie_and_a_sweep_is_certain():
    hits = [[True, False, True]]
    assert paired_difference(hits, hits) == (0.0, (0.0, 0.0), 0.5)
    assert paired_difference([[1, 1]], [[0, 0]]) == (1.0, (1.0, 1.0), 1.0)
    assert paired_difference([[0, 0]], [[1, 1]]) == (-1.0, (-1.0, -1.0), 0.0)


def test_the_same_hits_give_the_same_interval():
    a, b = two_models(7, n=60)
    assert paired_difference(a, b) == paired_difference(a, b)


def test_counts_are_those_of_as_many_images_drawn_with_replacement():
    counts = image_counts(50, 400, seed=1)
    assert counts.shape == (400, 50) and (counts.sum(1) == 50).all()
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.05)  # binomial(n, 1/n)
    assert np.array_equal(counts, image_counts(50, 400, seed=1))
    assert not np.array_equal(counts, image_counts(50, 400, seed=2))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_few_seeds_spread_as_the_mean_of_that_many_does(seeds):
    values = np.random.default_rng(seeds).normal(size=seeds)
    shares = seed_shares(seeds, 40_000)
    assert shares.sum(1) == pytest.approx(np.ones(40_000))
    means = shares @ values
    assert means.mean() == pytest.approx(values.mean(), abs=0.02)
    assert means.std() == pytest.approx(values.std(ddof=1) / np.sqrt(seeds), rel=0.03)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 1), (12, 12), (40, 17), (3, 900)])
def test_it_is_the_two_tailed_binomial(better, worse):
    wanted = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert sign_test(better, worse) == sign_test(worse, better) == pytest.approx(wanted)
