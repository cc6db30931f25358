"""Folds: every class that has others loses as many photographs, and each of these is asked about once."""

import pytest
import torch
from experts import photographs
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_posterior import problem


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([4, 16]))
def test_each_is_asked_about_once_and_no_class_is_emptied(counts, number):
    images, labels, texts = problem(4, counts)
    shown = photographs(images, labels, texts, 1.0)
    asked_about = torch.zeros(len(labels))
    for gone, asked in shown.dealt(number):
        asked_about[asked] += 1
        assert torch.isin(asked, gone).all()
        lost = labels[gone].bincount(minlength=len(counts))
        for had, less in zip(counts, lost.tolist(), strict=True):
            assert less == 0 if had == 1 else had // number <= less <= max(1, -(-had // number))
    assert asked_about.tolist() == [float(counts[label] > 1) for label in labels]


def test_what_is_left_and_the_order_they_came_in():
    images, labels, texts = problem(4, [2, 3, 20])
    shown = photographs(images, labels, texts, 1.0)
    expected = {0: [0.5], 1: [2 / 3], 2: [18 / 20, 19 / 20]}
    for label, share in zip(labels.tolist(), shown.left.tolist(), strict=True):
        assert any(share == pytest.approx(each) for each in expected[label])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    again = photographs(images[order], labels[order], texts, 1.0)
    assert torch.equal(again.places, shown.places[order])


def test_without_some_the_sums_are_those_of_the_others():
    images, labels, texts = problem(4, [3, 4])
    gone = torch.tensor([0, 3])
    rest = torch.tensor([i for i in range(7) if i not in (0, 3)])
    few, expected = (
        photographs(images, labels, texts, 1.0).without(gone),
        photographs(images[rest], labels[rest], texts, 1.0),
    )
    assert torch.equal(few.images, expected.images) and torch.equal(few.labels, expected.labels)
    for mine, theirs in zip(few.statistics, expected.statistics, strict=True):
        torch.testing.assert_close(mine, theirs)
