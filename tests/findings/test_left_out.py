"""Left-out answers equal those of models that were really fitted without the image."""

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
from pbprompt.core.evidence_choice import GROWTH, choose
from pbprompt.core.likelihood import unit
from pbprompt.core.look_alikes import look_alikes
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map, move
from pbprompt.findings.left_out import left_out_answers

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
SCALE = 20.0


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 64, generator=generator)
    images = centres[LABELS] + 0.6 * torch.randn(len(LABELS), 64, generator=generator)
    return images, centres + torch.randn(4, 64, generator=generator)


def test_each_is_judged_by_a_model_without_it():
    images, texts = drawn()
    said = left_out_answers(images, LABELS, texts, SCALE)
    assert said is not None
    x, plain = unit(images).double(), unit(texts).double()
    whole = Statistics.of(x, LABELS, 4)
    text_map = learn_text_map(whole.sums / whole.counts.unsqueeze(1), whole.counts, plain)
    moved = move(text_map, plain, torch.arange(4))
    frame = make_frame(whole, moved)
    z = x @ frame.basis
    alike = look_alikes(z, LABELS)
    assert (alike.sizes == 1).all()  # so that leaving out is fitting without
    choice = choose(frame, z, LABELS, SCALE, plain @ frame.basis, alike)
    counts = whole.counts[LABELS[:9]]  # of the tenth there is no other
    growth = (GROWTH * (counts / (counts - 1)).log().mean()).exp()
    for row in range(len(LABELS) - 1):
        rest = torch.arange(len(LABELS)) != row
        other = make_frame(Statistics.of(x[rest], LABELS[rest], 4), moved)
        sigma = covariance(other)
        at = distances(other, sigma, text_slope(other, sigma), x[row : row + 1] @ other.basis)
        far = (at(KAPPA) / inflation(other.counts, KAPPA)).amin()
        expected = torch.zeros(4, dtype=torch.float64)
        for kappa, temper, weight in zip(choice.kappa, choice.temper, choice.weight, strict=True):
            density = log_density(at(float(kappa)), other.counts, float(kappa), other.width)
            expected += weight * (temper / growth * tail_factor(far, other.width) * density[0]).softmax(0)
        torch.testing.assert_close(said.probabilities[row].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_copy_does_not_vouch_for_a_label():
    images, texts = drawn()
    wrong = images[5] + 1e-3  # an image of class 1, thrice among those of class 0
    many = torch.cat([images, wrong.repeat(3, 1)])
    said = left_out_answers(many, torch.cat([LABELS, torch.zeros(3, dtype=torch.long)]), texts, SCALE)
    assert said is not None and (said.probabilities[-3:, 1] > said.probabilities[-3:, 0]).all()


def test_an_only_image_is_not_judged():
    said = left_out_answers(*_inputs(LABELS))
    assert said is not None and said.judged.tolist() == [True] * 9 + [False]


def test_parts_give_what_the_whole_gives(monkeypatch):
    whole = left_out_answers(*_inputs(LABELS))
    monkeypatch.setattr(left_out, "CELLS", 192)  # three rows at once
    parts = left_out_answers(*_inputs(LABELS))
    assert whole is not None and parts is not None
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


def test_one_class_leaves_nothing_to_tell():
    assert left_out_answers(*_inputs(torch.zeros_like(LABELS))) is None


def test_a_class_without_images_gets_no_probability():
    images, texts = drawn()
    said = left_out_answers(images[:9], LABELS[:9], texts, SCALE)
    assert said is not None
    assert (said.probabilities[:, 3] == 0).all()
    torch.testing.assert_close(said.probabilities.sum(1), torch.ones(9))


def _inputs(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    images, texts = drawn()
    return images, labels, texts, SCALE
