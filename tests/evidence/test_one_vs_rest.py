"""Two Gaussians a label: as written out in full, and without an image as if really fitted without it."""

import numpy as np
import pytest
import torch

from pbprompt.evidence.experts.gaussian import GAMMA
from pbprompt.evidence.label_head import label_statistics, log_ratio, products, slope

CASES = {"many": (30, 6, 5), "few": (5, 4, 3), "wider than many": (8, 20, 4)}
cases = pytest.mark.parametrize(("images", "width", "labels"), CASES.values(), ids=CASES)


def problem(images: int, width: int, labels: int):
    """The first label is on one image, the second on all but one, the third on none."""
    generator = torch.Generator().manual_seed(images)
    texts = torch.randn(labels, width, generator=generator, dtype=torch.float64)
    has = (torch.rand(images, labels, generator=generator) < 0.4).double()
    has[:, :3] = torch.tensor([0.0, 1.0, 0.0])
    has[0, 0], has[1, 1] = 1, 0
    x = has @ texts + torch.randn(images, width, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(x), has, texts


@cases
def test_left_out_on_paper_is_left_out(images, width, labels):
    x, has, texts = problem(images, width, labels)
    known = label_statistics(x, has, texts)
    left = products(known, x @ known.basis, has)
    for i in range(images):
        kept = torch.arange(images) != i
        fewer = label_statistics(x[kept], has[kept], texts)
        really = products(fewer, x[i : i + 1] @ fewer.basis)
        torch.testing.assert_close(slope(left)[i], slope(really)[0], rtol=1e-8, atol=1e-8)
        for kappa in (0.5, 8.0):
            said, wanted = log_ratio(left, kappa)[i], log_ratio(really, kappa)[0]
            torch.testing.assert_close(said, wanted, rtol=1e-8, atol=1e-8)


@cases
def test_the_ratio_of_two_densities(images, width, labels):
    x, has, texts = problem(images, width, labels)
    new = torch.randn(4, width, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    known = label_statistics(x, has, texts)
    said = log_ratio(products(known, new @ known.basis), kappa=3.0)

    x, y, t, new = (part.numpy() for part in (x, has, texts - texts.mean(0), new))
    trace = ((x - x.mean(0)) ** 2).sum()
    sigma, rest, step = [], [], []
    for c in range(labels):
        own = y[:, c] == 1
        parts = [part - part.mean(0) for part in (x[own], x[~own]) if len(part)]
        scatter = sum(part.T @ part for part in parts) + trace / (images - 1) * np.eye(width)
        sigma.append(scatter / (images - 2 + width))
        rest.append(x[~own].mean(0))
        step.append(x[own].mean(0) - rest[-1] if own.any() else np.zeros(width))
    both = [c for c in range(labels) if y[:, c].any()]
    along = sum(t[c] @ step[c] for c in both)
    s = max(0.0, along / sum(t[c] @ sigma[c] @ t[c] for c in both))
    for c in range(labels):
        n = y[:, c].sum()
        prior = rest[c] + GAMMA * s * sigma[c] @ t[c]
        mean = (3.0 * prior + n * (rest[c] + step[c])) / (3.0 + n)
        precision = np.linalg.inv(sigma[c])
        density = [-0.5 * np.einsum("nd,de,ne->n", new - m, precision, new - m) for m in (mean, rest[c])]
        np.testing.assert_allclose(said[:, c].numpy(), density[0] - density[1], rtol=1e-7, atol=1e-7)


def test_a_label_of_no_image_is_told_by_its_name():
    x, has, texts = problem(30, 6, 5)
    known = label_statistics(x, has, texts)
    parts = products(known, torch.eye(6, dtype=torch.float64) @ known.basis)
    alone = log_ratio(parts, 2.0)[:, 2]
    along = GAMMA * float(slope(parts)[0]) * (texts[2] - texts.mean(0))
    torch.testing.assert_close(alone - alone.mean(), along - along.mean())


def test_equal_images_and_equal_names_say_nothing():
    x = torch.ones(6, 3, dtype=torch.float64) / 3**0.5
    has = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double().repeat(3, 1)
    known = label_statistics(x, has, torch.ones(2, 3))
    said = log_ratio(products(known, x @ known.basis, has), 2.0)
    torch.testing.assert_close(said, torch.zeros_like(said))
