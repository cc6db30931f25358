"""Left-out answers equal those of models that were really fitted without the image."""

import torch

from pbprompt.core.conjugate import Statistics, covariance, distances, log_density, make_frame, text_slope
from pbprompt.core.evidence_choice import choose
from pbprompt.core.likelihood import unit
from pbprompt.findings import left_out
from pbprompt.findings.left_out import left_out_answers

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
SCALE = 20.0


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 6, generator=generator)
    images = centres[LABELS] + 0.6 * torch.randn(len(LABELS), 6, generator=generator)
    return images, centres + torch.randn(4, 6, generator=generator)


def test_each_is_judged_by_a_model_without_it():
    images, texts = drawn()
    said = left_out_answers(images, LABELS, texts, SCALE)
    assert said is not None
    x = unit(images).double()
    whole = make_frame(Statistics.of(x, LABELS, 4), unit(texts))
    choice = choose(whole, x @ whole.basis, LABELS, SCALE)
    for row in range(len(LABELS)):
        rest = torch.arange(len(LABELS)) != row
        frame = make_frame(Statistics.of(x[rest], LABELS[rest], 4), unit(texts))
        sigma = covariance(frame)
        at = distances(frame, sigma, text_slope(frame, sigma), x[row : row + 1] @ frame.basis)
        expected = torch.zeros(4, dtype=torch.float64)
        for kappa, temper, weight in zip(choice.kappa, choice.temper, choice.weight, strict=True):
            density = log_density(at(float(kappa)), frame.counts, float(kappa), frame.width)
            expected += weight * (temper * density[0]).softmax(0)
        torch.testing.assert_close(said.probabilities[row].double(), expected, rtol=1e-5, atol=1e-6)


def test_an_only_image_is_not_judged():
    said = left_out_answers(*_inputs(LABELS))
    assert said is not None and said.judged.tolist() == [True] * 9 + [False]


def test_parts_give_what_the_whole_gives(monkeypatch):
    whole = left_out_answers(*_inputs(LABELS))
    monkeypatch.setattr(left_out, "CELLS", 18)  # three rows at once
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
