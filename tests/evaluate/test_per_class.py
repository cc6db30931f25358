"""Precision, recall and F1 against scikit-learn; None where there is nothing to take a share of."""

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from pbprompt.evaluate.confusion import confusion_matrix
from pbprompt.evaluate.per_class import per_class, worst_first


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
