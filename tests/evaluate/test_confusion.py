"""The confusion matrix against scikit-learn, and the order of the pairs."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as reference

from pbprompt.evaluate.confusion import confusion_matrix, csv_rows, most_confused, most_involved


def test_the_matrix_agrees_with_scikit_learn():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(0, 6, (2, 300))
    np.testing.assert_array_equal(
        confusion_matrix(labels, predicted, 7), reference(labels, predicted, labels=range(7))
    )


@pytest.mark.parametrize("wrong", [([0, 3], [0, 0]), ([0, 0], [0, -1]), ([0], [0, 1])])
def test_labels_and_predictions_must_be_of_the_classes(wrong):
    with pytest.raises(ValueError, match=r"out of range|one length"):
        confusion_matrix(*wrong, classes=3)


def test_pairs_come_by_images_then_by_share_and_without_what_is_right():
    matrix = np.array([[9, 2, 0], [2, 3, 5], [0, 0, 0]])
    pairs = most_confused(matrix)
    found = [(pair.true, pair.taken_for, pair.images) for pair in pairs]
    assert found == [(1, 2, 5), (1, 0, 2), (0, 1, 2)]
    assert pairs[0].share == 0.5
    assert most_confused(matrix, 1) == pairs[:1]
    assert most_confused(np.diag([1, 2])) == []


def test_the_classes_with_the_most_errors_come_first():
    assert most_involved(np.array([[9, 0, 1], [0, 5, 0], [4, 0, 0]]), 2) == [0, 2]


def test_the_table_names_rows_and_columns():
    assert csv_rows(np.array([[1, 2], [0, 3]]), ["a", "b"])[1:] == [["a", 1, 2], ["b", 0, 3]]
