"""AUROC against scikit-learn and over pairs; the risk-coverage curve against every order of the ties."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from pbprompt.model.metrics.selective import (
    area_under_risk_coverage,
    auroc,
    few_errors,
    fewest_right,
    risk_coverage,
    start,
    sure_threshold,
)

QUICK = settings(deadline=None, max_examples=50)
SCORED = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=25)


@pytest.mark.parametrize("decimals", [8, 1])
def test_auroc_agrees_with_scikit_learn(decimals):
    generator = np.random.default_rng(0)
    positives = generator.random(400) < 0.3
    scores = (generator.normal(size=400) + positives).round(decimals)
    assert auroc(scores, positives) == pytest.approx(roc_auc_score(positives, scores))


@QUICK
@given(SCORED.filter(lambda items: len({positive for _, positive in items}) == 2))
def test_auroc_counts_pairs_with_ties_as_half(items):
    above = [score for score, positive in items if positive]
    below = [score for score, positive in items if not positive]
    wins = [(p > n) + (p == n) / 2 for p in above for n in below]
    scores, positives = zip(*items, strict=True)
    found = auroc(scores, positives)
    assert found == pytest.approx(np.mean(wins))
    assert auroc(-np.array(scores), positives) == pytest.approx(1 - found)
    assert auroc(np.exp(scores), positives) == pytest.approx(found)  # only the order counts


def test_auroc_orders_infinities():
    assert auroc([-np.inf, 0.0, np.inf], [0, 0, 1]) == 1


def test_auroc_needs_both_kinds():
    with pytest.raises(ValueError, match="there are 2 and 0"):
        auroc([0.1, 0.2], [1, 1])


def test_risk_coverage_of_a_small_case_by_hand():
    coverage, risk = risk_coverage([0.9, 0.5, 0.7, 0.8], [True, False, True, False])
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(risk, [0, 1 / 2, 1 / 3, 2 / 4])


def test_area_of_the_best_and_of_a_useless_confidence():
    correct = [True] * 6 + [False] * 2
    best = sum(max(0, k - 6) / k for k in range(1, 9)) / 8
    assert area_under_risk_coverage(np.arange(8, 0, -1), correct) == pytest.approx(best)
    assert area_under_risk_coverage(np.ones(8), correct) == pytest.approx(2 / 8)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_risk_is_the_mean_over_every_order_of_tied_items(items):
    curves = []
    for order in itertools.permutations(items):
        ranked = sorted(order, key=lambda item: -item[0])  # stable: ties stay as this order has them
        errors = [not right for _, right in ranked]
        curves.append([sum(errors[:k]) / k for k in range(1, len(items) + 1)])
    coverage, risk = risk_coverage(*zip(*items, strict=True))
    np.testing.assert_allclose(risk, np.mean(curves, axis=0), atol=1e-12)
    np.testing.assert_allclose(coverage, [k / len(items) for k in range(1, len(items) + 1)])
    assert area_under_risk_coverage(*zip(*items, strict=True)) == pytest.approx(np.mean(curves))


@QUICK
@given(SCORED, st.randoms(use_true_random=False))
def test_the_curve_ends_at_the_error_rate_whatever_the_order(items, random):
    confidence, correct = map(np.array, zip(*items, strict=True))
    _, risk = risk_coverage(confidence, correct)
    assert risk[-1] == pytest.approx(1 - correct.mean())
    assert ((risk >= 0) & (risk <= 1 + 1e-12)).all()
    order = random.sample(range(len(items)), len(items))
    np.testing.assert_allclose(risk_coverage(confidence[order], correct[order])[1], risk)


@pytest.mark.parametrize("figure", [auroc, risk_coverage, area_under_risk_coverage])
@pytest.mark.parametrize(
    ("values", "truth", "message"),
    [
        ([], [], "nothing to measure"),
        ([[0.1], [0.2]], [0, 1], r"shape \[items\]"),
        ([0.1, 0.2], [0], "one value for each of the 2 items"),
        ([0.1, np.nan], [0, 1], "NaN"),
        ([0.1, 0.2], [0, 2], "zeros and ones"),
        ([0.1, 0.2], [0, 0.5], "booleans or zeros and ones"),
    ],
)
def test_wrong_arrays_are_refused(figure, values, truth, message):
    with pytest.raises(ValueError, match=message):
        figure(values, truth)


@pytest.mark.parametrize(
    ("items", "errors", "rate"), [(22, 0, 0.1), (100, 7, 0.1), (4000, 350, 0.1), (5, 5, 0.3)]
)
def test_few_errors_agrees_with_scipy(items, errors, rate):
    assert few_errors(items, errors, rate) == pytest.approx(binom.cdf(errors, items, rate), rel=1e-9)
    assert few_errors(items, errors, 0.0) == 1.0
    assert few_errors(items, errors, 1 - 1e-320) == float(errors >= items)


def test_the_fewest_right_items_by_hand():
    assert fewest_right(0.9) == 22  # 0.9²² = 0.098
    assert fewest_right(0.5, 0.75) == 2 and fewest_right(1.0) == math.inf
    assert math.isinf(sure_threshold([0.9] * 21, [1] * 21, 0.9))
    assert sure_threshold([0.9] * 22, [1] * 22, 0.9) == 0.9


def test_the_sequence_stops_at_the_first_threshold_that_fails():
    """24 right items, four wrong ones, and others below, which are never looked at."""
    confidence = np.linspace(1, 0.5, 80)
    right = np.ones(80)
    right[24:28] = 0
    assert start(confidence, 0.9) == 22
    assert sure_threshold(confidence, right, 0.9) == confidence[23]
    assert math.isinf(sure_threshold(confidence, 1 - right, 0.9))
    one_level = sure_threshold([0.7] * 80, right, 0.9)  # ties come together: 4 errors of 80
    assert one_level == 0.7


def test_it_starts_where_the_confidences_expect_the_promise_to_hold():
    """100 items at .99 and 100 at .5: of the first 100 one error is expected, which is few enough; of 130,
    16 are."""
    confidence = [0.99] * 100 + [0.5] * 100
    most = max(n for n in range(22, 201) if binom.cdf(int(0.01 * 100 + 0.5 * (n - 100)), n, 0.1) <= 0.05)
    assert 100 <= most < 130
    assert abs(start(confidence, 0.9) - most / 2) <= 2  # of 64 that are tried
    assert start([0.6] * 50, 0.9) == 22  # they expect nothing: as few as could promise it
    assert math.isinf(start([0.99] * 21, 0.9))


def test_a_sure_mistake_is_made_up_for():
    """The surest item is wrong; begun at the fewest that could promise it, nothing would be accepted."""
    confidence, right = np.linspace(1, 0.9, 300), np.ones(300)
    right[0] = 0
    assert few_errors(22, 1, 0.1) > 0.1
    assert sure_threshold(confidence, right, 0.9) == confidence[-1]


@pytest.mark.parametrize(("items", "accuracy", "trust"), [(100, 0.8, 1), (300, 0.9, 1), (300, 0.8, 0.95)])
def test_the_promised_accuracy_is_broken_at_most_as_rarely_as_promised(items, accuracy, trust):
    """Items right as often as their confidence says, or less so: what is above a threshold is known."""
    generator, runs, certainty = np.random.default_rng(0), 500, 0.9
    broken = naive = accepting = 0

    def right_above(threshold: float) -> float:
        return trust * (1 + threshold) / 2  # confidence is uniform

    for _ in range(runs):
        confidence = generator.random(items)
        right = generator.random(items) < trust * confidence
        threshold = sure_threshold(confidence, right, accuracy, certainty)
        accepting += math.isfinite(threshold)
        broken += math.isfinite(threshold) and right_above(threshold) < accuracy
        order = np.argsort(-confidence)
        reached = right[order].cumsum() / np.arange(1, items + 1) >= accuracy
        naive += reached.any() and right_above(confidence[order][reached.nonzero()[0].max()]) < accuracy
    assert broken <= binom.ppf(0.999, runs, 1 - certainty)
    assert naive > 0.3 * runs  # the empirical choice breaks its word: the simulation can tell
    assert accepting > 0.2 * runs  # and the promise is not kept by accepting nothing


def test_with_sure_mistakes_most_of_what_can_be_answered_is():
    """One in 65 of the surest is wrong, and 43 % could be answered at 90 %. A sequence that began at the
    fewest items, and at a third of all, answered 16 %."""
    generator, answered, broken, runs = np.random.default_rng(0), [], 0, 100

    def probability(confidence):
        return np.minimum(confidence, 0.985) * 0.985

    whole = np.sort(generator.beta(1.1, 0.6, 100_000))[::-1]
    right_from = probability(whole).cumsum() / np.arange(1, len(whole) + 1)
    for _ in range(runs):
        confidence = generator.beta(1.1, 0.6, 600)
        right = generator.random(600) < probability(confidence)
        threshold = sure_threshold(confidence, right, 0.9)
        accepted = int((whole >= threshold).sum())
        answered.append(accepted / len(whole))
        broken += accepted > 0 and right_from[accepted - 1] < 0.9
    assert np.mean(answered) > 0.22 and broken <= binom.ppf(0.999, runs, 0.1)
