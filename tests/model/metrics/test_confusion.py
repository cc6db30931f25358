"""The confusion matrix and the figures of classes against scikit-learn, and the order of the pairs."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as reference
from sklearn.metrics import precision_recall_fscore_support

from pbprompt.model.metrics.confusion import (
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
