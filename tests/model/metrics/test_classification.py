"""The confusion matrix and the figures of classes against scikit-learn, and the order of the pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix as reference
from sklearn.metrics import precision_recall_fscore_support

from pbprompt.model.metrics.classification import (
    confidence_bins,
    confusion_matrix,
    csv_rows,
    most_confused,
    most_involved,
    per_class,
    worst_first,
)


def test_the_matrix_agrees_with_scikit_learn():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(0, 6, (2, 300))
    np.testing.assert_array_equal(
        confusion_matrix(labels, predicted, 7), reference(labels, predicted, labels=range(7))
    )


def test_pairs_come_by_images_then_by_share_and_without_what_is_right():
    matrix = np.array([[9, 2, 0], [2, 3, 5], [0, 0, 0]])
    pairs = most_confused(matrix)
    found = [(pair.true, pair.taken_for, pair.images) for pair in pairs]
    assert found == [(1, 2, 5), (1, 0, 2), (0, 1, 2)]
    assert pairs[0].share == 0.5
    assert most_confused(np.diag([1, 2])) == []


def test_the_classes_with_the_most_errors_come_first():
    assert most_involved(np.array([[9, 0, 1], [0, 5, 0], [4, 0, 0]]), 2) == [0, 2]


def test_the_table_names_rows_and_columns():
    assert csv_rows(np.array([[1, 2], [0, 3]]), ["a", "b"])[1:] == [["a", 1, 2], ["b", 0, 3]]


def test_every_class_agrees_with_scikit_learn():
    labels, predicted = np.random.default_rng(0).integers(0, 4, (2, 200))
    figures = per_class(confusion_matrix(labels, predicted, 4), "abcd")
    expected = precision_recall_fscore_support(labels, predicted)
    for one, *values in zip(figures, *expected, strict=True):
        assert [one.precision, one.recall, one.f1, one.images] == pytest.approx(values)


def test_a_share_of_nothing_is_none_and_such_a_class_is_not_the_worst():
    figures = per_class(np.array([[2, 2, 0], [0, 3, 0], [0, 0, 0]]), ["half", "whole", "absent"])
    assert figures[2].precision is figures[2].recall is figures[2].f1 is None
    assert [one.name for one in worst_first(figures)] == ["half", "whole", "absent"]
    assert figures[0].to_dict() == {
        "class": "half",
        "images": 4,
        "answered": 2,
        "right": 2,
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
    }


def drawn(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidence, and whether it was right."""
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(5, 0.4), size=n).max(1), generator.random(n) < 0.4


def gap(members: list[tuple[float, bool]]) -> float:
    """A bin's n_b · |accuracy − confidence|."""
    return abs(sum(right for _, right in members) - sum(confidence for confidence, _ in members))


@pytest.mark.parametrize(("seed", "bins"), [(0, 15), (1, 15), (2, 10), (3, 1)])
def test_equal_width_ece_is_the_loop_over_bins(seed, bins):
    confidence, correct = drawn(seed, n=200)
    total = 0.0
    for b in range(bins):
        members = [
            (sure, right)
            for sure, right in zip(confidence, correct, strict=True)
            if b / bins < sure <= (b + 1) / bins
        ]
        total += gap(members)
    assert confidence_bins(confidence, correct, bins).error == pytest.approx(total / 200)


@pytest.mark.parametrize(("seed", "n", "bins"), [(0, 150, 15), (1, 203, 15), (2, 7, 15), (3, 64, 10)])
def test_adaptive_ece_is_the_loop_over_slices_of_the_sorted_items(seed, n, bins):
    confidence, correct = drawn(seed, n)
    items = sorted(zip(confidence, correct, strict=True))
    if n >= bins:
        total = sum(gap(items[n * b // bins : n * (b + 1) // bins]) for b in range(bins))
    else:
        total = sum(gap([item]) for item in items)
    found = confidence_bins(confidence, correct, bins, adaptive=True).error
    assert found == pytest.approx(total / n)


def test_equal_mass_bins_differ_by_one_item_at_most():
    found = confidence_bins(*drawn(4, n=203), adaptive=True)
    assert len(found.count) == 15
    assert found.count.sum() == 203
    assert set(found.count) == {13, 14}


def test_equal_confidences_share_a_bin():
    found = confidence_bins([0.9] * 7 + [0.6] * 3, [True] * 5 + [False] * 5, bins=5, adaptive=True)
    assert sorted(found.count) == [0, 0, 0, 3, 7]


def test_bins_of_a_small_case_by_hand():
    confidence, correct = [0.5, 0.6, 0.7, 1.0], [True, False, True, True]
    found = confidence_bins(confidence, correct, bins=4)
    np.testing.assert_allclose(found.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(found.count, [0, 1, 2, 1])  # an edge belongs to the bin below it
    np.testing.assert_allclose(found.confidence, [np.nan, 0.5, 0.65, 1.0])
    np.testing.assert_allclose(found.accuracy, [np.nan, 1.0, 0.5, 1.0])
    ece = confidence_bins(confidence, correct, bins=4).error
    assert ece == pytest.approx((0.5 + 2 * 0.15 + 0) / 4)


def test_a_calibrated_model_has_no_error_and_an_overconfident_one_its_gap():
    calibrated = [0.75] * 4, [True, True, True, False]
    overconfident = [1.0] * 4, [True, True, True, False]
    for adaptive in (False, True):
        assert confidence_bins(*calibrated, adaptive=adaptive).error == pytest.approx(0)
        assert confidence_bins(*overconfident, adaptive=adaptive).error == pytest.approx(0.25)


def test_a_probability_rounded_above_one_falls_in_the_last_bin():
    found = confidence_bins([1.0000002], [True])
    assert found.count[-1] == 1
    assert found.confidence[-1] == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from([0.5, 0.6, 0.75, 0.9, 1.0]), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 20),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_bounds_and_order(items, bins, adaptive, random):
    confidence, correct = map(np.array, zip(*items, strict=True))
    found = confidence_bins(confidence, correct, bins, adaptive)
    ece = confidence_bins(confidence, correct, bins, adaptive).error
    assert found.count.sum() == len(items)
    assert len(found.edges) == bins + 1
    assert (np.diff(found.edges) >= 0).all()
    full = found.count > 0
    assert (found.confidence[full] <= found.edges[1:][full] + 1e-12).all()
    assert (found.confidence[full] >= found.edges[:-1][full] - 1e-12).all()
    # No binning can show less than the gap between overall accuracy and mean confidence.
    assert gap([(c, right) for c, right in items]) / len(items) - 1e-12 <= ece <= 1
    order = random.sample(range(len(items)), len(items))
    shuffled = confidence_bins(confidence[order], correct[order], bins, adaptive).error
    assert shuffled == pytest.approx(ece, abs=1e-12)
