"""Series found by features: bursts are, photographs by themselves are not, and folds keep them whole."""

import pytest
import torch

from pbprompt.evidence.series import find_series, joined, series_folds, threshold, whitened
from pbprompt.vision.similarity import unit

CLASSES, SERIES, WIDTH = 12, 6, 48


def photographs(twins, noise=0.15, seed=0, classes=CLASSES):
    """Classes of series, of `twins` photographs each, which differ by a little noise."""
    chance = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, 1, 1, WIDTH, generator=chance)
    scenes = means + 0.5 * torch.randn(classes, SERIES, 1, WIDTH, generator=chance)
    shots = scenes + noise * torch.randn(classes, SERIES, twins, WIDTH, generator=chance)
    labels = torch.arange(classes).repeat_interleave(SERIES * twins)
    groups = torch.arange(classes * SERIES).repeat_interleave(twins)
    return unit(shots.reshape(-1, WIDTH)), labels, groups


def same_parts(found, groups):
    return torch.equal(found.unsqueeze(1) == found, groups.unsqueeze(1) == groups)


def test_bursts_are_found_in_any_order():
    images, labels, groups = photographs(twins=4)
    assert same_parts(find_series(images, labels).of, groups)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    assert same_parts(find_series(images[order], labels[order]).of, groups[order])


def test_photographs_by_themselves_stay_so():
    images, labels, _ = photographs(twins=1)
    assert same_parts(find_series(images, labels).of, torch.arange(len(labels)))
    assert same_parts(find_series(images[:1], labels[:1]).of, labels[:1])


def test_twins_are_joined_the_most_alike_first_until_two_series_are_left():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    pairs = torch.tensor([[0, 1], [2, 3], [1, 2], [4, 5], [5, 6]])
    assert joined(labels, pairs, torch.tensor([0.9, 0.8, 0.7, 0.6, 0.65])).tolist() == [0, 0, 2, 2, 4, 5, 5]


def test_whitening_by_hand():
    images, labels, _ = photographs(twins=2)
    white, residual = whitened(images, labels)
    means = torch.stack([white[labels == label].mean(0) for label in range(CLASSES)])
    torch.testing.assert_close(residual, (white - means[labels]) * (12 / 11) ** 0.5)
    x = images.double()
    spread = torch.cat([x[labels == label] - x[labels == label].mean(0) for label in range(CLASSES)])
    freedom = len(x) - CLASSES
    shrunk = spread.T @ spread + float(spread.square().sum()) / freedom * torch.eye(WIDTH)
    precision = torch.linalg.inv(shrunk / (freedom + WIDTH))
    lengths = 12 / 11 * torch.stack([row @ precision @ row for row in spread])
    size = (lengths[:12].sum() + 4 * lengths.mean()) / (12 + 4)
    pair = x[0] - x[1]
    torch.testing.assert_close((white[0] - white[1]).square().sum(), pair @ precision @ pair / size)


def test_the_threshold_weighs_chance():
    """Of 100 photographs whose nearest of another class is 0 to 0.99 alike."""
    other = torch.arange(100) / 100
    assert threshold(other, other, 0.2) is None  # as often by accident
    assert threshold(torch.full((100,), 0.975), other, 0.2) == pytest.approx(
        0.85 * 0.99, abs=1e-6
    )  # 15 + 1 of 100
    assert threshold(torch.full((100,), 0.995), other, 1.0) == pytest.approx(0.5 * 0.99)  # the least tried
    assert threshold(other, torch.full((100,), -torch.inf), 0.2) is None


def test_folds_hold_whole_series_of_every_class_evenly():
    labels = torch.tensor([0] * 8 + [1] * 5 + [2] * 3)
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9, 9])
    folds = series_folds(labels, groups, 4)
    rows = torch.cat(folds).tolist()
    assert sorted(rows) == list(range(13))  # the third class has one series, and would be lost
    for fold in folds:
        inside = set(groups[fold].tolist())
        assert not inside & set(groups[[row for row in range(16) if row not in fold.tolist()]].tolist())
    assert [int((labels[fold] == 0).sum()) for fold in folds] == [3, 2, 2, 1]
    assert [int((labels[fold] == 1).sum()) for fold in folds] == [2, 1, 1, 1]


def test_a_single_class_tells_nothing_of_accidents():
    images, labels, _ = photographs(twins=2, classes=1)
    assert same_parts(find_series(images, labels).of, torch.arange(len(labels)))


def test_photographs_that_may_be_twins_are_counted():
    sure, doubtful, apart = (
        find_series(*photographs(twins=4, noise=noise)[:2]) for noise in (0.15, 0.6, 1.0)
    )
    assert sure.alike == len(sure.of)  # all of which are joined
    assert len(doubtful.of.unique()) > 270 and 100 < doubtful.alike < 200  # hardly any of which are
    assert apart.alike == 0
