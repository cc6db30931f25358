"""Prediction sets cover what they say, shown by exhaustion rather than by luck."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.model.metrics.conformal import (
    ByDifficulty,
    by_difficulty,
    class_quantiles,
    conformal_quantile,
    fewest_images,
    prediction_sets,
)

probability = st.integers(0, 50).map(lambda step: step / 50)  # coarse, so that ties are common
coverages = st.integers(1, 99).map(lambda percent: percent / 100)
quickly = settings(deadline=None, max_examples=150)


@quickly
@given(st.lists(probability, min_size=2, max_size=40), coverages)
def test_each_of_n_images_left_out_in_turn_is_covered_often_enough(true, coverage):
    """Exchangeable: any of n + 1 images may be the new one, each equally likely. So average over all."""
    covered = sum(
        1 - held_out <= conformal_quantile(true[:at] + true[at + 1 :], coverage)
        for at, held_out in enumerate(true)
    )
    assert Fraction(covered, len(true)) >= Fraction(str(coverage))


@quickly
@given(st.lists(probability, min_size=1, max_size=40), coverages)
def test_no_smaller_score_would_do(true, coverage):
    """By trying all: the least score that (n + 1)·coverage of the scores do not exceed."""
    scores = [1 - value for value in true]
    needed = (len(true) + 1) * Fraction(str(coverage))
    enough = [score for score in scores if sum(other <= score for other in scores) >= needed]
    assert conformal_quantile(true, coverage) == min(enough, default=math.inf)


@pytest.mark.parametrize(
    ("n", "coverage", "rank"),
    [(9, 0.9, 9), (10, 0.9, 10), (19, 0.95, 19), (99, 0.07, 7), (99, 0.29, 29), (100, 0.9, 91), (1, 0.5, 1)],
)
def test_ranks_by_hand(n, coverage, rank):
    """0.07 · 100 and 0.29 · 100 are where floating point would take the next rank."""
    true = np.random.default_rng(0).permutation(np.linspace(0, 0.99, n))
    assert conformal_quantile(true, coverage) == np.sort(1 - true)[rank - 1]


def prediction_set(row, quantile) -> list[int]:
    return np.flatnonzero(prediction_sets([row], quantile)[0]).tolist()


@pytest.mark.parametrize(("coverage", "fewest"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.1, 1)])
def test_too_few_images_make_every_class_possible(coverage, fewest):
    assert fewest_images(coverage) == fewest
    assert math.isfinite(conformal_quantile([0.7] * fewest, coverage))
    if fewest > 1:
        assert conformal_quantile([0.7] * (fewest - 1), coverage) == math.inf
    assert prediction_set([0.1, 0.9, 0.0], math.inf) == [0, 1, 2]


def test_sets_by_hand():
    row = [0.05, 0.5, 0.15, 0.3]
    assert prediction_set(row, 0.7) == [1, 3]  # 1 − 0.3 ≤ 0.7: equality is in
    assert prediction_set(row, 0.69) == [1]
    assert prediction_set(row, 0.85) == [1, 2, 3]


def test_a_set_is_never_empty():
    assert prediction_set([0.2, 0.5, 0.3], 0.1) == [1]


@quickly
@given(st.lists(probability, min_size=2, max_size=12), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_sets_grow_with_the_quantile(row, quantiles):
    low, high = (prediction_set(row, quantile) for quantile in sorted(quantiles))
    assert set(low) <= set(high)


@pytest.mark.parametrize("coverage", [0, 1, 90, -0.1, math.nan])
def test_a_coverage_is_a_share(coverage):
    with pytest.raises(InputError, match="give a share between 0 and 1"):
        conformal_quantile([0.5], coverage)


def test_a_quantile_for_each_class_covers_each_class():
    """One class is much harder: on average over images both cover, for its images only the second does."""
    generator = np.random.default_rng(0)

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = (generator.random(n) < 0.1).astype(int)
        own = np.where(labels == 1, generator.beta(1, 4, n), generator.beta(9, 1, n))
        return np.stack([np.where(labels == 1, 1 - own, own), np.where(labels == 1, own, 1 - own)], 1), labels

    rows, labels = images(2000)
    true, names = rows[np.arange(len(rows)), labels], ("easy", "hard")
    marginal = conformal_quantile(true, 0.9)
    by_class = class_quantiles(true, [names[label] for label in labels], (*names, "unseen"), 0.9)
    assert by_class[2] == math.inf
    rows, labels = images(4000)
    hard = labels == 1

    def covered(quantile) -> np.ndarray:
        return prediction_sets(rows, quantile)[np.arange(len(rows)), labels]

    assert covered(marginal).mean() > 0.88 and covered(marginal)[hard].mean() < 0.75
    assert covered(by_class[:2])[hard].mean() > 0.85 and covered(by_class[:2])[~hard].mean() > 0.85


def test_sets_follow_how_hard_an_image_is():
    """Images of which the hard ones are far less sure than they should be: one quantile fails these."""
    generator = np.random.default_rng(0)

    def drawn(images):
        top = generator.uniform(0.3, 1, images)
        right = generator.random(images) < np.where(top < 0.5, 0.4, 0.99)
        true = np.where(right, top, (1 - top) * generator.random(images))
        return top, true

    hard, plain, easy = [], [], []
    for _ in range(200):
        found = by_difficulty(*(given := drawn(400)), 0.9)
        one = conformal_quantile(given[1], 0.9)
        top, true = drawn(2000)
        below = top < 0.45
        held = 1 - true <= found(top)
        hard.append(held[below].mean())
        easy.append(held[~below].mean())
        plain.append((1 - true <= one)[below].mean())
    assert len(found.edges) == 3 and sorted(found.edges) == list(found.edges)
    assert np.mean(hard) > 0.895 and np.mean(easy) > 0.895 > 0.7 > np.mean(plain)


def test_few_images_have_one_quantile_for_all():
    found = by_difficulty([0.9] * 30, np.linspace(0.1, 0.9, 30), 0.9)  # all as hard
    assert found == ByDifficulty((), (conformal_quantile(np.linspace(0.1, 0.9, 30), 0.9),))
    assert by_difficulty(np.linspace(0.5, 0.9, 53), [0.5] * 53, 0.9).edges == ()
    assert len(by_difficulty(np.linspace(0.5, 0.9, 54), [0.5] * 54, 0.9).edges) == 1
    row = [0.6, 0.3, 0.1]
    assert prediction_set(row, ByDifficulty((0.7,), (0.8, 0.2))) == [0, 1]
    assert prediction_set([0.8, 0.15, 0.05], ByDifficulty((0.7,), (0.8, 0.2))) == [0]
