"""Confused pairs, counted by hand."""

import torch

from pbprompt.findings.overlap import Overlap, overlaps


def test_pairs_are_counted_both_ways_and_sorted_by_share():
    labels = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    taken = [0, 0, 1, 1, 1, 1, 1, 0, 2, 2, 2, 0]
    p = torch.nn.functional.one_hot(torch.tensor(taken), 3).float()
    judged = torch.ones(12, dtype=torch.bool)
    assert overlaps(p, labels, judged) == [Overlap(0, 1, 3, 8)]  # one of 0 and 2 may be chance
    judged[2] = False
    assert overlaps(p, labels, judged) == [Overlap(0, 1, 2, 7)]


def test_a_small_share_is_no_overlap():
    labels = torch.tensor([0] * 30 + [1] * 30)
    taken = labels.clone()
    taken[:2] = 1
    p = torch.nn.functional.one_hot(taken, 2).float()
    assert overlaps(p, labels, torch.ones(60, dtype=torch.bool)) == []
