"""The conjugate model against loops in float64 that follow its equations, in the basis of the images."""

import math

import numpy as np
import pytest
import torch

from pbprompt.core.conjugate import (
    FLOOR,
    GAMMA,
    covariance,
    distances,
    inflation,
    log_density,
    make_frame,
    posterior_means,
    text_slope,
)
from pbprompt.core.likelihood import uncertainty
from pbprompt.core.statistics import Statistics

CASES = {
    "equal": (5, [4, 4, 4]),
    "unequal": (5, [3, 1, 6, 2]),
    "a class without": (5, [3, 0, 2, 4]),
    "single": (5, [1, 1, 1, 1, 1]),
    "wider than many": (24, [2, 3, 1]),
    "two classes": (5, [3, 5]),
    "one class": (5, [4]),
    "one of two": (5, [0, 4]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)


def problem(width: int, counts: list[int], seed: int = 0):
    """Images of length 1 near their names, shuffled."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    unit = torch.nn.functional.normalize
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    texts = unit(draw(len(counts), width))
    images = unit(0.7 * texts[labels] + 0.4 * draw(len(labels), width) + 0.5)
    return images, labels, texts


class Loops:
    """The docstring of the module, term by term."""

    def __init__(self, images, labels, texts):
        x, y, t = images.numpy(), labels.numpy(), texts.numpy()
        d, seen = x.shape[1], sorted(set(y.tolist()))
        self.n = np.array([(y == c).sum() for c in range(len(t))])
        self.mean = np.array([x[y == c].mean(0) if c in seen else np.full(d, np.nan) for c in range(len(t))])
        self.b, tbar = self.mean[seen].mean(0), t[seen].mean(0)
        self.t = t - tbar
        self.S = sum(np.outer(a - self.mean[c], a - self.mean[c]) for a, c in zip(x, y, strict=True))
        between = sum(np.sum((self.mean[c] - self.b) ** 2) for c in seen)
        freedom = len(x) - len(seen)
        variance = (np.trace(self.S) + between / max(1, len(seen) - 1) / 2) / (d * (freedom + 1))
        variance = max(variance, FLOOR / d)
        self.sigma = (self.S + d * variance * np.eye(d)) / (freedom + d)
        along = sum(self.t[c] @ (self.mean[c] - self.b) for c in seen)
        length = sum(self.t[c] @ self.sigma @ self.t[c] for c in seen)
        self.slope = max(0.0, along / length) if length > 1e-12 * np.trace(self.sigma) / d else 0.0

    def centre(self, c: int, kappa: float) -> np.ndarray:
        name = self.b + 2 * self.slope * self.sigma @ self.t[c]
        photographs = self.n[c] * self.mean[c] if self.n[c] else 0
        return (kappa * name + photographs) / (kappa + self.n[c])


def frame_of(images, labels, texts):
    return make_frame(Statistics.of(images, labels, len(texts)), texts)


@cases
def test_frame(width, counts):
    inputs = problem(width, counts)
    frame, loops = frame_of(*inputs), Loops(*inputs)
    basis = frame.basis.numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(width), atol=1e-12)
    np.testing.assert_allclose((basis * frame.spectrum.numpy()) @ basis.T, loops.S, atol=1e-12)
    known = frame.known.tolist()
    assert known == [c for c, n in enumerate(counts) if n]
    assert (frame.seen, frame.freedom) == (len(known), sum(counts) - len(known))
    np.testing.assert_allclose(basis @ frame.centre.numpy(), loops.b, atol=1e-12)
    np.testing.assert_allclose(frame.means[known].numpy() @ basis.T, loops.mean[known], atol=1e-12)
    np.testing.assert_allclose((frame.texts - frame.text_centre).numpy() @ basis.T, loops.t, atol=1e-12)


@cases
def test_covariance_and_slope(width, counts):
    inputs = problem(width, counts)
    frame, loops = frame_of(*inputs), Loops(*inputs)
    sigma = covariance(frame)
    basis = frame.basis.numpy()
    np.testing.assert_allclose((basis * sigma.numpy()) @ basis.T, loops.sigma, rtol=1e-9, atol=1e-12)
    assert text_slope(frame, sigma) == pytest.approx(loops.slope, rel=1e-9)
    assert (loops.slope > 0) == (frame.seen > 1)  # so that the names are seen to count


@cases
@pytest.mark.parametrize("kappa", [0.25, 2.0, 64.0])
def test_posterior_means(width, counts, kappa):
    inputs = problem(width, counts)
    frame, loops = frame_of(*inputs), Loops(*inputs)
    sigma = covariance(frame)
    name, photographs = posterior_means(frame, sigma, text_slope(frame, sigma), kappa)
    together = (name + photographs).numpy() @ frame.basis.numpy().T
    for c, n in enumerate(counts):
        np.testing.assert_allclose(together[c], loops.centre(c, kappa) - loops.b, atol=1e-11)
        if n == 0:
            assert (photographs[c] == 0).all()


@cases
@pytest.mark.parametrize("kappa", [0.25, 2.0, 64.0])
def test_log_density_is_that_of_a_gaussian(width, counts, kappa):
    inputs = problem(width, counts)
    frame, loops = frame_of(*inputs), Loops(*inputs)
    sigma = covariance(frame)
    new = problem(width, [7], seed=9)[0]
    squared = distances(frame, sigma, text_slope(frame, sigma), new @ frame.basis)(kappa)
    found = log_density(squared, frame.counts, kappa, width)
    shared = -0.5 * np.linalg.slogdet(loops.sigma)[1] - 0.5 * width * math.log(2 * math.pi)
    for c, n in enumerate(counts):
        iota = 1 + 1 / (kappa + n)
        assert inflation(frame.counts, kappa)[c] == pytest.approx(iota, rel=1e-12)
        gaussian = torch.distributions.MultivariateNormal(
            torch.from_numpy(loops.centre(c, kappa)), torch.from_numpy(iota * loops.sigma)
        )
        np.testing.assert_allclose(found[:, c] + shared, gaussian.log_prob(new), rtol=1e-7, atol=1e-7)


def test_a_thousand_classes():
    inputs = problem(3, [2] * 1000)
    frame, loops = frame_of(*inputs), Loops(*inputs)
    sigma = covariance(frame)
    squared = distances(frame, sigma, text_slope(frame, sigma), inputs[0][:4] @ frame.basis)(2.0)
    precision = np.linalg.inv(loops.sigma)
    for c in (0, 1, 499, 999):
        off = inputs[0][:4].numpy() - loops.centre(c, 2.0)
        np.testing.assert_allclose(squared[:, c], np.sum(off @ precision * off, axis=1), rtol=1e-8)


def test_the_prior_alone_is_the_text_classifier():
    """Without photographs of two classes, their log densities differ by the text's logits and a constant."""
    images, labels, texts = problem(6, [4, 4, 0, 0])
    frame = frame_of(images, labels, texts)
    sigma = covariance(frame)
    slope = text_slope(frame, sigma)
    new = problem(6, [9], seed=4)[0]
    table = log_density(distances(frame, sigma, slope, new @ frame.basis)(2.0), frame.counts, 2.0, 6)
    by_text = GAMMA * slope / 1.5 * new @ (texts[2] - texts[3])
    rest = table[:, 2] - table[:, 3] - by_text
    assert slope > 0 and rest.std() < 1e-9 * by_text.std()


def test_names_that_point_away_are_not_followed():
    images, labels, texts = problem(6, [4, 4, 4])
    frame = frame_of(images, labels, -texts)
    assert text_slope(frame, covariance(frame)) == 0.0
    frame = frame_of(images, labels, texts[:1].repeat(3, 1))
    assert text_slope(frame, covariance(frame)) == 0.0
    frame = frame_of(images, labels, torch.zeros_like(texts))
    assert text_slope(frame, covariance(frame)) == 0.0


@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 1], [4]])
def test_equal_images_stay_finite(counts):
    images, labels, texts = problem(5, counts)
    images = images[:1].expand(len(labels), -1)
    frame = frame_of(images, labels, texts)
    sigma = covariance(frame)
    assert (sigma > 0).all()
    slope = text_slope(frame, sigma)
    for kappa in (0.25, 64.0):
        squared = distances(frame, sigma, slope, images @ frame.basis)(kappa)
        table = log_density(squared, frame.counts, kappa, 5)
        assert table.isfinite().all()
        torch.testing.assert_close(table, table[:, :1].expand_as(table), rtol=0, atol=1e-4)


def test_rotating_the_space_changes_nothing():
    images, labels, texts = problem(6, [3, 1, 4])
    turn = torch.linalg.qr(problem(6, [6], seed=3)[0])[0]
    tables = []
    for q in (torch.eye(6, dtype=torch.float64), turn):
        frame = frame_of(images @ q, labels, texts @ q)
        sigma = covariance(frame)
        tables.append(distances(frame, sigma, text_slope(frame, sigma), images @ q @ frame.basis)(2.0))
    torch.testing.assert_close(*tables, rtol=1e-9, atol=1e-9)


# a mixture over (κ, T) is a weighted mean of class distributions


def logits(*shape: int) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_equal_weights_are_no_weights():
    table = logits(4, 3, 5)
    weighted = uncertainty(table, torch.full((4,), 0.25, dtype=torch.float64))
    for mine, plain in zip(weighted, uncertainty(table), strict=True):
        torch.testing.assert_close(mine, plain)


def test_whole_weights_are_repeated_samples():
    table, times = logits(3, 4, 5), torch.tensor([1, 4, 2])
    weighted = uncertainty(table, times.double() / 7)
    for mine, repeated in zip(weighted, uncertainty(table.repeat_interleave(times, 0)), strict=True):
        torch.testing.assert_close(mine, repeated)
    assert not torch.allclose(weighted.probabilities, uncertainty(table).probabilities, atol=1e-3)


def test_a_weight_of_nothing_drops_its_sample():
    table = logits(3, 4, 5)
    weighted = uncertainty(table, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))
    for mine, without in zip(weighted, uncertainty(table[[0, 2]]), strict=True):
        torch.testing.assert_close(mine, without)


def test_a_weight_counts_a_photograph_so_often():
    images, labels, _ = problem(5, [3, 0, 2, 4])
    often = torch.arange(len(labels)) % 3 + 1
    weighted = Statistics.of(images, labels, 4, often.double())
    repeated = Statistics.of(images.repeat_interleave(often, 0), labels.repeat_interleave(often), 4)
    for mine, theirs in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
