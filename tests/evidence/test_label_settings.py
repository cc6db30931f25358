"""What left-out images choose: a maximum of what it is said to be, thresholds of the best F1."""

import math

import pytest
import torch
import torch.nn.functional as F

from pbprompt.evidence import label_head
from pbprompt.evidence.label_head import (
    Products,
    choose_label_settings,
    choose_thresholds,
    label_statistics,
    log_ratio,
    prior_odds,
    products,
)


def left_out(images: int = 40, width: int = 6, labels: int = 4) -> tuple[Products, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    texts = torch.randn(labels, width, generator=generator)
    has = (torch.rand(images, labels, generator=generator) < 0.3).double()
    x = F.normalize(has @ texts.double() + torch.randn(images, width, generator=generator))
    known = label_statistics(x, has, texts)
    return products(known, x @ known.basis, has), has


def test_no_other_settings_are_more_probable():
    left, has = left_out()
    chosen = choose_label_settings(left, has, width=6)

    def improbable(kappa: float, temperature: float, offset: float) -> float:
        logits = temperature * log_ratio(left, kappa) + prior_odds(left) + offset
        told = float(F.binary_cross_entropy_with_logits(logits, has, reduction="sum"))
        prior = math.log(kappa / 2) ** 2 + math.log(temperature * math.sqrt(6) / 2) ** 2 + offset**2
        return told + 0.5 * prior

    least = improbable(*chosen)
    others = [
        (kappa, chosen.temperature * math.exp(more), chosen.offset + shift)
        for kappa in label_head.KAPPAS
        for more in (-2, -0.5, -0.01, 0, 0.01, 0.5, 2)
        for shift in (-1, -0.01, 0, 0.01, 1)
    ]
    assert all(improbable(*other) >= least - 1e-9 for other in others)


@pytest.mark.parametrize("sign", [1, -1])
def test_labels_that_are_told_apart_wholly_have_an_end_too(sign):
    """Without a prior T would grow for ever."""
    has = torch.eye(4).double().repeat(5, 1)
    ratio = sign * (400 * has - 200)
    temperature, offset, loss = label_head._fit(ratio, torch.zeros_like(ratio), has, math.log(0.2))
    assert all(map(math.isfinite, (temperature, offset, loss))) and 0 < temperature < 10


def best_f1(probabilities: torch.Tensor, has: torch.Tensor) -> float:
    levels = [level / 100 for level in range(1, 100)]
    return max(f1(probabilities >= level, has) for level in levels)


def f1(given: torch.Tensor, has: torch.Tensor) -> float:
    return float(2 * (given * has).sum() / (given.sum() + has.sum()))


def test_thresholds_have_the_best_f1_of_each_label_or_of_all():
    generator = torch.Generator().manual_seed(0)
    has = (torch.rand(200, 3, generator=generator) < torch.tensor([0.1, 0.3, 0.6])).double()
    said = (0.3 * has + torch.rand(200, 3, generator=generator) * torch.tensor([0.3, 0.5, 0.7])).double()
    own = choose_thresholds(said, has, worth=1e-9)
    for c in range(3):
        assert f1(said[:, c] >= own[c], has[:, c]) == pytest.approx(best_f1(said[:, c], has[:, c]))
    shared = choose_thresholds(said, has, worth=1e9)
    assert len(shared.unique()) == 1
    assert f1(said >= shared[0], has) == pytest.approx(best_f1(said, has))


def test_a_label_of_few_images_takes_the_threshold_of_the_others():
    has = torch.zeros(100, 3).double()
    has[:50, 0], has[0, 1] = 1, 1  # the third is on no image
    said = torch.where(has > 0, 0.6, 0.4).double()
    said[0, 1], said[1:, 1] = 0.1, 0.05  # by itself the second would be given from 0.06 on
    thresholds = choose_thresholds(said, has).tolist()
    assert all(0.4 < threshold <= 0.6 for threshold in thresholds)


def test_of_equally_good_thresholds_it_is_the_middle_one():
    has = torch.eye(2).double().repeat(4, 1)
    assert choose_thresholds(0.2 + 0.6 * has, has).tolist() == [0.5, 0.5]


def test_no_label_at_all_leaves_one_half():
    assert choose_thresholds(torch.rand(5, 2).double(), torch.zeros(5, 2)).tolist() == [0.5, 0.5]


def test_log_odds_add_up():
    left, _ = left_out()
    said = label_head.LabelChoice(kappa=2.0, temperature=0.5, offset=0.25).log_odds(left)
    assert torch.equal(said, 0.5 * log_ratio(left, 2.0) + prior_odds(left) + 0.25)
