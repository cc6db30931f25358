"""Kernel ridge regression on the labels and nearest photographs, against real refits in float64."""

import numpy as np
import pytest
import torch
from experts import photographs
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_posterior import PlainKernel, normal, problem, repeated

from pbprompt.evidence.expert import Seen
from pbprompt.evidence.experts import kernel

CASES = {
    "equal": (5, [4, 4, 4]),
    "unequal": (5, [3, 1, 6, 2]),
    "single": (5, [1, 1, 1, 1]),
    "wider than many": (24, [2, 3, 1]),
    "two photographs": (5, [1, 1]),
    "one class": (5, [4]),
    "one photograph": (5, [1]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)


class Both:
    """Kernel regression and the nearest photograph, which go by one bandwidth."""

    def __init__(self, made, near):
        self.made, self.near, self.bandwidth, self.coefficients = (
            made,
            near,
            made.bandwidth,
            made.coefficients,
        )

    def scores(self, images):
        return torch.stack([each.scores(Seen(images)) for each in (self.made, self.near)])


def fit_kernel(images, labels, classes, weights):
    """With R and Q of each photograph held out, and max R of the other classes without its own."""
    shown = photographs(images, labels, torch.zeros(classes, images.shape[1]), 1.0, weights)
    (made, held), (near, next_) = kernel.fit(shown), kernel.fit_nearest(shown)
    return Both(made, near), torch.stack([held.scores, next_.scores]), held.without_class


def by_folds(plain, images, labels, classes):
    """R and Q of each photograph by those that its fold leaves; of a class's only one by all others."""
    shown, tables = photographs(images, labels, torch.zeros(classes, images.shape[1]), 1.0), plain.left_out()
    for gone, asked in shown.folds:
        rest = np.setdiff1d(np.arange(len(labels)), gone)
        for i in asked.tolist():
            tables[:, i] = plain.regression(plain.x[i], rest), plain.nearest(plain.x[i], rest)
    return tables


def others(table, labels):
    """Of the other classes, the most."""
    return np.where(np.eye(table.shape[1])[labels] > 0, -np.inf, table).max(1)


def ones(labels) -> torch.Tensor:
    return torch.ones(len(labels), dtype=torch.float64)


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@cases
@pytest.mark.parametrize("weighted", [False, True])
def test_against_refits(width, counts, weighted):
    images, labels, _ = problem(width, counts)
    weights = 0.3 + torch.rand(len(labels), generator=torch.Generator().manual_seed(1)).double()
    weights = weights if weighted else ones(labels)
    fitted, scores, without_class = fit_kernel(images, labels, len(counts), weights)
    plain = PlainKernel(images, labels, len(counts), weights)
    new = problem(width, [6], seed=9)[0]
    assert float(fitted.bandwidth) == pytest.approx(plain.h)
    close(fitted.scores(new), plain.scores(new.numpy()))
    close(scores, by_folds(plain, images, labels, len(counts)))
    close(without_class, others(plain.without_class(), labels))


def test_a_class_of_which_no_photograph_is_kept():
    images, labels, _ = problem(5, [3, 2])
    fitted, scores, without_class = fit_kernel(images, 2 * labels, 4, ones(labels))
    plain = PlainKernel(images, 2 * labels, 4)
    close(scores, by_folds(plain, images, 2 * labels, 4))
    close(without_class, others(plain.without_class(), 2 * labels))
    assert fitted.coefficients.shape == (5, 4)
    new = problem(5, [6], seed=9)[0]
    close(fitted.scores(new), plain.scores(new.numpy()))
    by_nearest = fitted.scores(new)[1]
    close(by_nearest[:, [1, 3]], by_nearest[:, [0, 2]].mean(1, keepdim=True).expand(-1, 2))


def test_the_nearest_photograph_tells_by_itself():
    """Of its own class it has no distance; without it, the next one decides; of nothing, nothing is said."""
    images, labels, _ = problem(6, [3, 2, 4])
    fitted, scores, _ = fit_kernel(images, labels, 3, ones(labels))
    by_nearest, others = fitted.scores(images)[1], scores[1]
    own = torch.nn.functional.one_hot(labels, 3).bool()
    close(by_nearest[own], np.zeros(9))
    assert (by_nearest[~own] < 0).all() and (others[own] < 0).all()
    assert (others <= by_nearest + 1e-12)[~own].all()
    _, scores, _ = fit_kernel(images[:1], labels[:1] * 0, 1, ones(labels[:1]))
    assert scores[1].tolist() == [[0.0]]


def test_a_weight_counts_a_photograph_so_often(monkeypatch):
    """With the same width of the kernel: that goes by single photographs."""
    images, labels, _ = problem(6, [3, 1, 2])
    often = torch.arange(len(labels)) % 3 + 1
    weighted, *_ = fit_kernel(images, labels, 3, often.double())
    monkeypatch.setattr(kernel, "BANDWIDTH", 0.0)
    monkeypatch.setattr(kernel, "FLOOR", float(weighted.bandwidth))
    more, more_labels = repeated(images, labels, often)
    many, *_ = fit_kernel(more, more_labels, 3, ones(more_labels))
    new = problem(6, [5], seed=3)[0]
    torch.testing.assert_close(weighted.scores(new), many.scores(new), rtol=1e-9, atol=1e-9)


def test_photographs_tell_their_classes_and_nothing_far_away():
    images, labels, _ = problem(16, [4, 4, 4], noise=0.05)
    fitted, *_ = fit_kernel(images, labels, 3, ones(labels))
    scores = fitted.scores(images)
    assert (scores.argmax(2) == labels).all()
    close(scores[0].sum(1), np.zeros(12))
    assert fitted.scores(-images)[0].abs().max() < 1e-3


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_scores_are_bounded_by_the_nearest_photograph(seed):
    """So that they fall to 0 with the distance, whatever was learned."""
    images, labels, _ = problem(6, [3, 2, 4], seed=seed)
    fitted, *_ = fit_kernel(images, labels, 3, ones(labels))
    new = torch.nn.functional.normalize(normal(20, 6, seed=seed + 1))
    nearest = torch.cdist(new, images).square().amin(1, keepdim=True)
    most = (-nearest / (2 * fitted.bandwidth)).exp() * fitted.coefficients.abs().sum(0)
    assert (fitted.scores(new)[0].abs() <= most + 1e-12).all()


@pytest.mark.parametrize("counts", [[3, 3], [1, 1], [4], [1]], ids=str)
def test_equal_images_stay_finite(counts):
    images, labels, _ = problem(5, counts)
    images = images[:1].expand(len(labels), -1)
    fitted, *left = fit_kernel(images, labels, len(counts), ones(labels))
    for table in (fitted.scores(images), left[0]):
        assert table.isfinite().all()


def test_of_many_photographs_some_give_the_width(monkeypatch):
    images, labels, _ = problem(5, [20, 20])
    monkeypatch.setattr(kernel, "PAIRED", 10)
    fitted, *_ = fit_kernel(images, labels, 2, ones(labels))
    assert float(fitted.bandwidth) == pytest.approx(PlainKernel(images[::4], labels[::4], 2).h)
