"""Classes as Gaussians, against loops in float64, and without each photograph against real refits."""

import numpy as np
import pytest
import torch
from plain_posterior import PlainGaussians, normal, problem, repeated

from pbprompt.evidence.evidence import Statistics
from pbprompt.evidence.expert import Seen
from pbprompt.evidence.experts.gaussian import (
    GAMMA,
    Frame,
    fit_gaussians,
    inflation,
    leave_one_out,
    posterior_means,
    whitened,
)

CASES = {
    "equal": (5, [4, 4, 4]),
    "pairs": (5, [2, 2, 2]),
    "unequal": (5, [3, 1, 6, 2]),
    "single": (5, [1, 1, 1, 1, 1]),
    "wider than many": (24, [2, 3, 1]),
    "wider, single": (24, [1, 1, 1]),
    "two classes": (5, [3, 5]),
    "two classes, one single": (5, [1, 3]),
    "two photographs": (5, [1, 1]),
    "one class": (5, [4]),
    "one photograph": (5, [1]),
    "many": (6, [30, 30, 2]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)


def frame_of(images, labels, texts, weights=None) -> Frame:
    return whitened(Statistics.of(images, labels, len(texts), weights), texts)


def left_out(images, labels, texts, weights=None):
    weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
    return leave_one_out(frame_of(images, labels, texts, weights), images, labels, weights)


def unequal(count: int) -> torch.Tensor:
    weights = 0.2 + 1.6 * torch.rand(count, generator=torch.Generator().manual_seed(1)).double()
    return weights / weights.mean()  # as training has them


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@cases
@pytest.mark.parametrize("weighted", [False, True])
def test_frame(width, counts, weighted):
    images, labels, texts = problem(width, counts)
    weights = unequal(len(labels)) if weighted else None
    frame, plain = frame_of(images, labels, texts, weights), PlainGaussians(images, labels, texts, weights)
    whiten = frame.whiten.numpy()
    back = np.linalg.inv(whiten)
    close(back.T @ back, plain.sigma)
    close(frame.centre, plain.b)
    close(frame.means.numpy() @ back, plain.mean - plain.b)
    close(frame.priors.numpy() @ back, plain.prior - plain.b)
    assert frame.size == pytest.approx(plain.M)
    assert (plain.slope > 0) == (len(counts) > 1)  # so that the names are seen to count


@cases
def test_log_densities_are_those_of_gaussians(width, counts):
    images, labels, texts = problem(width, counts)
    gaussians = fit_gaussians(frame_of(images, labels, texts))
    new = problem(width, [7], seed=9)[0]
    found = gaussians.scores(Seen(new))
    densities, distances = PlainGaussians(images, labels, texts).judged(new)
    close(found, densities)
    close(-gaussians.closeness(found), distances.min(1))


@cases
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_equals_a_refit_under_the_same_prior(width, counts, weighted):
    images, labels, texts = problem(width, counts)
    weights = unequal(len(labels)) if weighted else None
    left = left_out(images, labels, texts, weights)
    densities, distances = PlainGaussians(images, labels, texts, weights).left_out()
    close(left[1], densities)
    close(left[0], distances)


def test_left_out_copies_within_a_class():
    images, labels, texts = problem(5, [3, 3, 3])
    copies = torch.stack([images[labels == c][0] for c in range(3)])[labels]
    densities, _ = PlainGaussians(copies, labels, texts).left_out()
    close(left_out(copies, labels, texts)[1], densities)


def test_some_of_the_photographs_are_judged_as_among_all():
    images, labels, texts = problem(5, [3, 1, 6, 2])
    ones = torch.ones(len(labels), dtype=torch.float64)
    frame, rows = frame_of(images, labels, texts), torch.tensor([7, 2, 3])
    some = leave_one_out(frame, images[rows], labels[rows], ones[rows])
    for mine, theirs in zip(some, leave_one_out(frame, images, labels, ones), strict=True):
        torch.testing.assert_close(mine, theirs[rows])


def test_a_weight_counts_a_photograph_so_often():
    images, labels, texts = problem(6, [3, 1, 2, 4])
    often = torch.arange(len(labels)) % 3 + 1
    weighted = fit_gaussians(frame_of(images, labels, texts, often.double()))
    twice = fit_gaussians(frame_of(*repeated(images, labels, often), texts))
    new = problem(6, [5], seed=3)[0]
    torch.testing.assert_close(weighted.scores(Seen(new)), twice.scores(Seen(new)), rtol=1e-9, atol=1e-9)


def test_names_that_point_away_are_not_followed():
    images, labels, texts = problem(6, [4, 4, 4])
    for other in (-texts, texts[:1].repeat(3, 1), torch.zeros_like(texts)):
        assert (frame_of(images, labels, other).priors == 0).all()
    assert (frame_of(images, labels, texts).priors != 0).any()


def test_a_name_alone_is_the_text_classifier():
    """Under their priors two classes' log densities differ by the texts' logits and a constant."""
    images, labels, texts = problem(6, [4, 4, 3])
    frame, plain = frame_of(images, labels, texts), PlainGaussians(images, labels, texts)
    unseen = fit_gaussians(frame._replace(counts=torch.zeros_like(frame.counts)))
    new = problem(6, [9], seed=4)[0]
    table = unseen.scores(Seen(new))
    by_text = GAMMA * plain.slope / 1.5 * new @ (texts[0] - texts[1])
    assert (table[:, 0] - table[:, 1] - by_text).std() < 1e-9 * by_text.std()


def test_the_more_photographs_the_less_the_name_counts():
    means, priors = normal(4, 3), normal(4, 3, seed=1)
    counts = torch.tensor([0.0, 1, 2, 1000], dtype=torch.float64)
    found = posterior_means(counts, means, priors)
    torch.testing.assert_close(found[0], priors[0])
    torch.testing.assert_close(found[2], (means[2] + priors[2]) / 2)
    torch.testing.assert_close(found[3], means[3], rtol=0, atol=0.01)
    assert (inflation(counts).diff() < 0).all() and inflation(counts)[0] == 1.5


@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 1], [4], [1]], ids=str)
def test_equal_images_stay_finite(counts):
    images, labels, texts = problem(5, counts)
    images = images[:1].expand(len(labels), -1)
    frame = frame_of(images, labels, texts)
    assert frame.whiten.isfinite().all()
    table = fit_gaussians(frame).scores(Seen(images))
    assert table.isfinite().all()
    torch.testing.assert_close(table, table[:, :1].expand_as(table), rtol=0, atol=1e-4)
    assert all(table.isfinite().all() for table in left_out(images, labels, texts))


def test_rotating_the_space_changes_nothing():
    images, labels, texts = problem(6, [3, 1, 4])
    turn = torch.linalg.qr(normal(6, 6, seed=3))[0]
    tables = [left_out(images @ q, labels, texts @ q) for q in (torch.eye(6).double(), turn)]
    torch.testing.assert_close(tables[0][1], tables[1][1], rtol=1e-9, atol=1e-9)


def test_a_thousand_classes():
    images, labels, texts = problem(3, [2] * 1000)
    found = fit_gaussians(frame_of(images, labels, texts)).scores(Seen(images[:3]))
    close(found, PlainGaussians(images, labels, texts).judged(images[:3])[0])
