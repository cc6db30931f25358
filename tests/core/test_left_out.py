"""Answers about left-out photographs equal those of models really made without them."""

import pytest
import torch

from pbprompt.core import left_out
from pbprompt.core.conjugate import (
    KAPPA,
    covariance,
    distances,
    inflation,
    log_density,
    make_frame,
    tail_factor,
    text_slope,
)
from pbprompt.core.evidence_choice import GROWTH, Choice
from pbprompt.core.left_out import left_out_answers, with_names
from pbprompt.core.names_alone import background_density, known_odds
from pbprompt.core.statistics import Statistics

unit = torch.nn.functional.normalize
NUMBER = torch.tensor
CHOICE = Choice(
    kappa=NUMBER([2.0, 0.5]).double(),
    temper=NUMBER([0.4, 1.1]).double(),
    weight=NUMBER([0.7, 0.3]).double(),
    name_scale=NUMBER(9.0).double(),
    background=NUMBER(1.4).double(),
    offset=NUMBER(-0.3).double(),
    information=NUMBER(0.5).double(),
    nearest=NUMBER([]),
    odds=NUMBER([]),
)


@pytest.mark.parametrize("cells", [left_out.CELLS, 10])
@pytest.mark.parametrize(("width", "counts"), [(5, [3, 4, 2]), (24, [2, 3, 4]), (6, [5, 1, 4])])
def test_with_two_names_beside_the_classes(width, counts, cells, monkeypatch):
    monkeypatch.setattr(left_out, "CELLS", cells)
    generator = torch.Generator().manual_seed(width)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.repeat_interleave(torch.arange(len(counts)), NUMBER(counts))
    texts = unit(draw(len(counts) + 2, width))
    images = unit(0.7 * texts[labels] + 0.4 * draw(len(labels), width) + 0.5)
    known, new = texts[: len(counts)], texts[len(counts) :]
    frame = make_frame(Statistics.of(images, labels, len(counts)), known)
    wide = with_names(frame, new)
    columns = NUMBER([4, 0, 1, 2])  # one of the new names, and not in order
    found = left_out_answers(wide, CHOICE, images @ frame.basis, labels, columns)
    several = [i for i, label in enumerate(labels.tolist()) if counts[label] > 1]
    assert found.several.nonzero().squeeze(1).tolist() == several
    judged = [counts[labels[i]] for i in several]
    growth = torch.exp(GROWTH * NUMBER([n / (n - 1) for n in judged]).double().log().mean())
    for i in several:
        rest = torch.arange(len(labels)) != i
        without = with_names(make_frame(Statistics.of(images[rest], labels[rest], len(counts)), known), new)
        sigma, z = covariance(without), images[i : i + 1] @ without.basis
        squared = distances(without, sigma, text_slope(without, sigma), z)
        near = (squared(KAPPA) / inflation(without.counts, KAPPA))[:, without.known].amin()
        u = z - without.centre
        said, odds = torch.zeros(len(columns), dtype=torch.float64), []
        for kappa, temper, weight in zip(CHOICE.kappa, CHOICE.temper, CHOICE.weight, strict=True):
            sharp = temper * tail_factor(near, width) / growth
            photographs = sharp * log_density(squared(float(kappa)), without.counts, float(kappa), width)
            ground = sharp * background_density((u.square() / sigma).sum(1), CHOICE.background, width)
            names = ground + CHOICE.offset + CHOICE.name_scale * u @ (without.texts - without.text_centre).T
            logits = torch.where(without.counts > 0, photographs, names)
            said += weight * logits[0, columns].softmax(0)
            alone = CHOICE.name_scale * u @ (without.texts - without.text_centre).T
            odds.append(known_odds(photographs[:, without.known], ground, alone[:, without.known]))
        torch.testing.assert_close(found.probabilities[i], said, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.nearest[i], near, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.odds[i], odds[0].squeeze(), rtol=1e-6, atol=1e-8)
