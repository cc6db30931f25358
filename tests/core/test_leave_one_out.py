"""Leaving each photograph out on paper equals really fitting without it."""

import pytest
import torch

from pbprompt.core.conjugate import covariance, distances, make_frame, text_slope
from pbprompt.core.leave_one_out import leave_one_out
from pbprompt.core.look_alikes import Alike
from pbprompt.core.statistics import Statistics

CASES = {
    "equal": (5, [4, 4, 4]),
    "pairs": (5, [2, 2, 2]),
    "unequal": (5, [3, 1, 6, 2]),
    "singles": (5, [1, 1, 1, 1, 1]),
    "singles and a class without": (5, [1, 0, 1, 1]),
    "a class without": (5, [3, 0, 2, 4]),
    "wider than many": (24, [2, 3, 1]),
    "wider, singles": (24, [1, 1, 1]),
    "two classes": (5, [3, 5]),
    "two classes, one single": (5, [1, 3]),
    "two classes, two singles": (5, [1, 1]),
    "two of three": (5, [2, 0, 2]),
    "many": (6, [30, 30, 2]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)
unit = torch.nn.functional.normalize


def problem(width: int, counts: list[int], seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    texts = unit(draw(len(counts), width))
    return unit(0.7 * texts[labels] + 0.4 * draw(len(labels), width) + 0.5), labels, texts


def frame_of(images, labels, texts):
    return make_frame(Statistics.of(images, labels, len(texts)), texts)


def left_out(images, labels, texts):
    frame = frame_of(images, labels, texts)
    return leave_one_out(frame, images @ frame.basis, labels)


def each_without(images, labels):
    """(i, rows but i) for every image."""
    for i in range(len(labels)):
        yield i, torch.arange(len(labels)) != i


def check_distances(images, labels, texts, kappas=(0.25, 1.0, 7.3, 64.0)):
    left = left_out(images, labels, texts)
    for i, rest in each_without(images, labels):
        frame = frame_of(images[rest], labels[rest], texts)
        sigma = covariance(frame)
        refitted = distances(frame, sigma, text_slope(frame, sigma), images[i : i + 1] @ frame.basis)
        assert torch.equal(left.counts[i], frame.counts)
        for kappa in kappas:
            torch.testing.assert_close(left.distances(kappa)[i], refitted(kappa)[0], rtol=1e-8, atol=0)


@cases
def test_distances(width, counts):
    check_distances(*problem(width, counts))


def test_distances_where_names_point_away():
    images, labels, texts = problem(5, [3, 1, 4])
    check_distances(images, labels, -texts)
    check_distances(images, labels, texts[:1].repeat(3, 1))
    check_distances(images, labels, torch.zeros_like(texts))


def test_distances_where_the_slope_changes_sign_with_an_image():
    """Names of no meaning: s is cut at 0 for some of the left-out images and not for others."""
    images, labels, _ = problem(5, [2, 2, 1])
    slopes = set()
    for seed in range(20):
        strange = unit(problem(5, [3], seed=100 + seed)[0] - 0.4)
        for _, rest in each_without(images, labels):
            frame = frame_of(images[rest], labels[rest], strange)
            slopes.add(text_slope(frame, covariance(frame)) > 0)
        if len(slopes) == 2:
            break
        slopes.clear()
    assert len(slopes) == 2
    check_distances(images, labels, strange)


def test_copies_within_a_class():
    images, labels, texts = problem(5, [3, 3, 3])
    copies = torch.stack([images[labels == c][0] for c in range(3)])
    check_distances(copies[labels], labels, texts)


@pytest.mark.parametrize("counts", [[4, 3, 5], [3, 0, 4, 1], [2, 6, 2]], ids=str)
@pytest.mark.parametrize("width", [5, 24])
def test_look_alikes_leave_together(width, counts):
    """As one point of their weight: what they differ by among themselves stays in S."""
    images, labels, texts = problem(width, counts)
    frame = frame_of(images, labels, texts)
    rows = torch.arange(len(labels))
    groups = [rows[(labels == labels[i]) & ((rows == i) | (rows % 3 == i % 3))] for i in range(len(labels))]
    means = torch.stack([images[group].mean(0) for group in groups])
    sizes = torch.tensor([float(len(group)) for group in groups], dtype=torch.float64)
    assert (sizes > 1).any() and (sizes < frame.counts[labels]).any()
    left = leave_one_out(
        frame, images @ frame.basis, labels, Alike(means @ frame.basis, sizes, torch.ones_like(sizes))
    )
    assert left.several.equal(frame.counts[labels] > sizes)
    whole = Statistics.of(images, labels, len(texts))
    for i in left.several.nonzero().squeeze(1).tolist():
        g, m, own = sizes[i], means[i], torch.eye(len(texts), dtype=torch.float64)[labels[i]]
        rest = Statistics(
            whole.counts - g * own, whole.sums - g * own.outer(m), whole.moment - g * m.outer(m)
        )
        refitted = make_frame(rest, texts)._replace(freedom=frame.freedom - 1, floor=frame.floor)
        sigma = covariance(refitted)
        far = distances(refitted, sigma, text_slope(refitted, sigma), images[i : i + 1] @ refitted.basis)
        assert torch.equal(left.counts[i], refitted.counts)
        torch.testing.assert_close(left.distances(2.0)[i], far(2.0)[0], rtol=1e-8, atol=0)


def test_some_of_the_photographs_stand_for_all():
    images, labels, texts = problem(5, [3, 1, 6, 2])
    frame = frame_of(images, labels, texts)
    whole = leave_one_out(frame, images @ frame.basis, labels)
    rows = torch.tensor([7, 2, 3])
    some = leave_one_out(frame, images[rows] @ frame.basis, labels[rows])
    torch.testing.assert_close(some.distances(2.0), whole.distances(2.0)[rows])
    for name in ("counts", "own_background", "own_cosines", "background", "cosines"):
        torch.testing.assert_close(getattr(some, name), getattr(whole, name)[rows])


def test_equal_images_stay_finite():
    images, labels, texts = problem(5, [3, 1, 2])
    left = left_out(images[:1].expand(6, -1), labels, texts)
    assert left.distances(2.0).isfinite().all()
    assert left.background.isfinite().all() and left.cosines.isfinite().all()


@cases
def test_background_and_cosines(width, counts):
    """P without the image; b and the mean of the texts without its whole class."""
    images, labels, texts = problem(width, counts)
    left = left_out(images, labels, texts)
    for i, rest in each_without(images, labels):
        frame = frame_of(images[rest], labels[rest], texts)
        precision = frame.basis @ torch.diag(1 / covariance(frame)) @ frame.basis.T
        others = [c for c, n in enumerate(counts) if n and c != labels[i]]
        b = torch.stack([images[labels == c].mean(0) for c in others]).mean(0)
        off = images[i] - b
        torch.testing.assert_close(left.background[i], off @ precision @ off, rtol=1e-8, atol=0)
        expected = (texts - texts[others].mean(0)) @ off
        torch.testing.assert_close(left.cosines[i], expected, rtol=1e-8, atol=1e-12)


@cases
def test_own_background_and_cosines(width, counts):
    """The same with the image alone left out of everything."""
    images, labels, texts = problem(width, counts)
    left = left_out(images, labels, texts)
    for i, rest in each_without(images, labels):
        frame = frame_of(images[rest], labels[rest], texts)
        off = images[i] @ frame.basis - frame.centre
        expected = (off.square() / covariance(frame)).sum()
        torch.testing.assert_close(left.own_background[i], expected, rtol=1e-8, atol=0)
        expected = (frame.texts - frame.text_centre) @ off
        torch.testing.assert_close(left.own_cosines[i], expected, rtol=1e-8, atol=1e-12)


def test_a_single_class_cannot_be_left_out():
    images, labels, texts = problem(5, [4])
    left = left_out(images, labels, texts)
    assert left.background.isfinite().all() and (left.cosines.abs() < 1e-12).all()
    check_distances(images, labels, texts)


@cases
def test_images_that_count_unequally(width, counts):
    """Leaving a weighted photograph out equals fitting the others with their weights."""
    images, labels, texts = problem(width, counts)
    weights = 0.2 + 1.6 * torch.rand(len(labels), generator=torch.Generator().manual_seed(1)).double()
    weights = weights / weights.mean()  # as training has them

    def weighted(rows):
        return make_frame(Statistics.of(images[rows], labels[rows], len(texts), weights[rows]), texts)

    frame = weighted(labels >= 0)
    left = leave_one_out(frame, images @ frame.basis, labels, Alike.none(images @ frame.basis, weights))
    for i, rest in each_without(images, labels):
        refitted = weighted(rest)
        sigma = covariance(refitted)
        far = distances(refitted, sigma, text_slope(refitted, sigma), images[i : i + 1] @ refitted.basis)
        torch.testing.assert_close(left.counts[i], refitted.counts)
        for kappa in (0.25, 7.3):
            torch.testing.assert_close(left.distances(kappa)[i], far(kappa)[0], rtol=1e-7, atol=0)
