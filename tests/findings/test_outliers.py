"""The least familiar images."""

import torch

from pbprompt.findings.outliers import outliers


def test_the_lowest_hundredth_the_lowest_first():
    odds = torch.arange(150.0)
    odds[[7, 3]] = torch.tensor([-2.0, -1.0])
    found = outliers(odds)
    assert [far.row for far in found] == [7, 3]
    assert found[0].familiarity == 1 / 150


def test_few_images_have_no_hundredth():
    assert outliers(torch.arange(19.0)) == []
