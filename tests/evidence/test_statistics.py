"""Sums of photographs: of parts, in place, by blocks, and what is left of a large shared part."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.evidence import evidence
from pbprompt.evidence.evidence import Statistics
from pbprompt.evidence.experts.gaussian import whitened

unit = torch.nn.functional.normalize


def drawn(counts, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return unit(torch.randn(len(labels), width, generator=generator, dtype=torch.float64)), labels


def same(mine: Statistics, theirs: Statistics) -> None:
    for name, one, other in zip(Statistics._fields, mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)


def test_they_are_sums():
    images, labels = drawn([3, 0, 2, 5])
    whole = Statistics.of(images, labels, 4)
    for c in range(4):
        rows = [image for image, label in zip(images, labels, strict=True) if label == c]
        assert whole.counts[c] == len(rows)
        torch.testing.assert_close(whole.sums[c], sum(rows, torch.zeros(4, dtype=torch.float64)))
    torch.testing.assert_close(whole.moment, sum(torch.outer(x, x) for x in images))


def test_those_of_parts_add_up():
    images, labels = drawn([3, 2, 4])
    order = labels.argsort(stable=True)  # the last class comes in the last part alone
    images, labels = images[order], labels[order]
    parts = Statistics.of(images[:4], labels[:4], 2).widened(3)
    parts = parts.merged(Statistics.of(images[4:5], labels[4:5], 3))
    same(parts.merged(Statistics.of(images[5:], labels[5:], 3)), Statistics.of(images, labels, 3))


def test_widened_they_know_nothing_of_the_new():
    former = Statistics.of(*drawn([3, 2]), 2)
    wide = former.widened(5)
    assert wide.counts.tolist() == [3, 2, 0, 0, 0] and wide.sums.shape == (5, 4)
    assert (wide.sums[2:] == 0).all() and torch.equal(wide.sums[:2], former.sums)
    assert torch.equal(wide.moment, former.moment)
    assert all(map(torch.equal, former.widened(2), former))


def test_relabelled_they_are_those_of_the_new_labels():
    images, labels = drawn([3, 1, 2])
    places = torch.tensor([4, 0, 2])
    same(Statistics.of(images, labels, 3).relabelled(places, 5), Statistics.of(images, places[labels], 5))


def test_they_are_double():
    images, labels = drawn([3, 2])
    assert {value.dtype for value in Statistics.of(images.float(), labels, 2)} == {torch.float64}


@pytest.mark.parametrize("width", [1, 3, 8, 21])
def test_added_in_place_they_are_the_same(width):
    images, labels = drawn([30, 3, 0, 40, 5], width)
    sums = Statistics.none(5, width)
    sums.add(images[:0], labels[:0])
    for at in (0, 7, 50):
        end = {0: 7, 7: 50, 50: len(labels)}[at]
        sums.add(images[at:end], labels[at:end])
    same(sums.whole(), Statistics.of(images, labels, 5))
    same(sums.whole().whole(), Statistics.of(images, labels, 5))
    same(sums.widened(9).whole(), Statistics.of(images, labels, 9))


def test_more_classes_than_there_was_room_for():
    images, labels = drawn([1] * 50)
    sums = Statistics.none(0, 4)
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        sums = sums.widened(int(label) + 1)
        sums.add(image, label)
    same(sums.whole(), Statistics.of(images, labels, 50))


@pytest.mark.parametrize("weighted", [False, True])
def test_many_are_added_by_blocks(monkeypatch, weighted):
    images, labels = drawn([9, 8, 6], 5)
    weights = torch.arange(23).double() if weighted else None
    whole = Statistics.of(images, labels, 4, weights)
    for block in (1, 2, 7, 22):
        monkeypatch.setattr(evidence, "BLOCK", block)
        same(Statistics.of(images, labels, 4, weights), whole)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.data())
def test_any_parts_in_any_order_and_grouping(labels, data):
    images, labels = drawn([len(labels)], 3)[0], torch.tensor(labels)
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))))
    ends = sorted(data.draw(st.lists(st.integers(0, len(labels)), min_size=2, max_size=2)))
    a, b, c = (Statistics.of(images[rows], labels[rows], 5) for rows in torch.tensor_split(order, ends))
    whole = Statistics.of(images, labels, 5)
    same(a.merged(b).merged(c), whole)
    same(a.merged(b.merged(c)), whole)
    same(c.merged(a).merged(b), whole)


def test_a_large_shared_part_leaves_the_spread_right():
    """All images nearly the same: S is a millionth of M, and yet as if the means were taken off first."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(5000) % 3
    common = unit(torch.randn(6, generator=generator, dtype=torch.float64), dim=0)
    noise = torch.randn(5000, 6, generator=generator, dtype=torch.float64)
    images = unit(common + 1e-3 * noise + 1e-3 * labels.unsqueeze(1))
    frame = whitened(Statistics.of(images, labels, 3), images[:3])
    x, y = images.numpy().astype(np.longdouble), labels.numpy()
    r = x - np.stack([x[y == c].mean(0) for c in range(3)])[y]
    expected = np.linalg.eigvalsh((r.T @ r).astype(float))
    scale = expected.max()
    spectrum = np.linalg.eigvalsh(np.linalg.inv(frame.whiten @ frame.whiten.T)) * frame.size  # of S + a I
    np.testing.assert_allclose((spectrum - spectrum[0]) / scale, (expected - expected[0]) / scale, atol=1e-8)


def test_a_weight_counts_a_photograph_so_often():
    images, labels = drawn([3, 0, 2, 4])
    often = torch.arange(len(labels)) % 3 + 1
    weighted = Statistics.of(images, labels, 4, often.double())
    same(weighted, Statistics.of(images.repeat_interleave(often, 0), labels.repeat_interleave(often), 4))
