"""Folds: every image of a class with several is held out once, and every class stays."""

import pytest
import torch

from pbprompt.evidence.series import held_out


@pytest.mark.parametrize("labels", [[0, 1, 0, 1, 0, 1], [2, 2, 0, 2, 2, 2, 2, 1, 0, 2], [0, 0]])
def test_each_once_and_no_class_is_lost(labels):
    y = torch.tensor(labels)
    folds = held_out(y)
    times = torch.stack(folds).sum(0)
    assert times.tolist() == [int(labels.count(label) > 1) for label in labels]
    assert len(folds) == min(5, max(map(labels.count, labels)))
    for held in folds:
        assert held.any() and set(y[~held].tolist()) == set(labels)


def test_one_image_a_class_holds_nothing_out():
    assert held_out(torch.tensor([2, 0, 1])) == []
