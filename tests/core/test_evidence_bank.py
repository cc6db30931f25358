"""Rows and one product of matrices against the densities of the model."""

import pytest
import torch

from pbprompt.core.conjugate import (
    covariance,
    distances,
    inflation,
    log_density,
    make_frame,
    text_slope,
)
from pbprompt.core.evidence_bank import asked_frame, make_rows, row_distances, row_logits
from pbprompt.core.names_alone import NamesAlone, background_density
from pbprompt.core.statistics import Statistics

unit = torch.nn.functional.normalize
KAPPA, TEMPER = 3.0, 0.2


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def model():
    texts, labels = unit(draw(4, 6)), torch.tensor([0, 0, 1, 2, 2, 2, 1, 0])
    images = unit(texts[labels] + 0.5 * draw(8, 6, seed=1) + 0.4)
    frame = make_frame(Statistics.of(images, labels, 4), texts)  # class 3 has no photograph
    numbers = (torch.tensor(value, dtype=torch.float64) for value in (20.0, 1.4, 0.3, 0.5))
    return frame, texts, NamesAlone(*numbers)


def looked_at(frame, images):
    u = images - frame.basis @ frame.centre
    return u, ((u @ frame.basis).square() / covariance(frame)).sum(1, keepdim=True)


def test_logits(model):
    frame, texts, names = model
    sigma = covariance(frame)
    slope = text_slope(frame, sigma)
    labels = torch.tensor([2, 3, -1, 0])  # one without photographs and one that is new
    asked = torch.cat([texts[[2, 3]], unit(draw(1, 6, seed=4)), texts[:1]])
    bank = make_rows(asked_frame(frame, asked, labels), sigma, slope, names, KAPPA, TEMPER)
    images, tail = unit(draw(5, 6, seed=2)), torch.linspace(0.3, 1.2, 5, dtype=torch.float64).unsqueeze(1)
    u, squared = looked_at(frame, images)
    found = row_logits(bank, u, squared, tail)
    every = log_density(distances(frame, sigma, slope, images @ frame.basis)(KAPPA), frame.counts, KAPPA, 6)
    ground = tail * TEMPER * background_density(squared.squeeze(1), names.background, 6).unsqueeze(1)
    by_name = ground + names.scale * u @ (asked - frame.basis @ frame.text_centre).T + names.offset
    expected = torch.stack(
        [tail[:, 0] * TEMPER * every[:, 2], by_name[:, 1], by_name[:, 2], tail[:, 0] * TEMPER * every[:, 0]],
        1,
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(row_logits(torch.stack([bank, bank]), u, squared, tail)[1], expected)


def test_distances(model):
    frame, texts, names = model
    sigma = covariance(frame)
    slope = text_slope(frame, sigma)
    bank = make_rows(asked_frame(frame, texts[:3], frame.known), sigma, slope, names, KAPPA, 1.0)
    images = unit(draw(5, 6, seed=2))
    found = row_distances(bank, *looked_at(frame, images))
    squared = distances(frame, sigma, slope, images @ frame.basis)(KAPPA)
    torch.testing.assert_close(found, (squared / inflation(frame.counts, KAPPA))[:, :3])
