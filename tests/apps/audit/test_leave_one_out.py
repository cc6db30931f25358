"""Judgements equal those of models that were really fitted without the image; what is concluded from them."""

import torch
from experts import photographs, scores

from pbprompt.apps.audit import leave_one_out as judging
from pbprompt.apps.audit.leave_one_out import (
    Judgement,
    Overlap,
    confident_classes,
    judge,
    label_errors,
    multi_label_errors,
    outliers,
    overlaps,
)
from pbprompt.evidence.fitted import DRAWS
from pbprompt.evidence.posterior import fit_posterior
from pbprompt.evidence.weights import combined
from pbprompt.vision.similarity import unit

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
SCALE = 20.0


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 64, generator=generator)
    images = centres[LABELS] + 0.6 * torch.randn(len(LABELS), 64, generator=generator)
    return images, centres + torch.randn(4, 64, generator=generator)


def test_each_is_judged_by_a_model_without_it():
    images, texts = drawn()
    said = judge(images, LABELS, texts, SCALE)
    assert said is not None
    x, plain = unit(images), unit(texts)
    posterior, left = fit_posterior(photographs(x, LABELS, plain, SCALE))
    drawn_weights = posterior.weights.draws(DRAWS)
    logits = posterior.mixed_with_names(
        combined(left.scores, drawn_weights), posterior.by_name(left.scores), left.looks
    )
    expected = logits.softmax(-1).mean(0)
    torch.testing.assert_close(said.probabilities, expected.float())
    torch.testing.assert_close(said.odds, left.looks.float())
    for row in range(len(LABELS) - 1):  # really fitted without it; of the tenth there is no other
        rest = torch.arange(len(LABELS)) != row
        other, _ = fit_posterior(photographs(x[rest], LABELS[rest], plain, SCALE))
        experts = scores(other, x[row : row + 1].double())
        assert said.probabilities[row].argmax() == torch.tensordot(other.weights.best, experts, 1)[0].argmax()


def test_images_beyond_those_that_stand_for_all_are_judged_too(monkeypatch):
    whole = judge(*_inputs(LABELS))
    monkeypatch.setattr(judging, "KEPT", 5)
    part = judge(*_inputs(LABELS))
    assert whole is not None and part is not None
    assert part.judged.equal(whole.judged) and part.probabilities.shape == whole.probabilities.shape
    torch.testing.assert_close(part.probabilities.sum(1), torch.ones(len(LABELS)))


def test_a_copy_does_not_vouch_for_a_label():
    images, texts = drawn()
    wrong = images[5] + 1e-3  # an image of class 1, thrice among those of class 0
    many = torch.cat([images, wrong.repeat(3, 1)])
    labels = torch.cat([LABELS, torch.zeros(3, dtype=torch.long)])
    said = judge(many, labels, texts, SCALE, copies=[(10, 11, 12)])
    assert said is not None and (said.probabilities[-3:, 1] > said.probabilities[-3:, 0]).all()


def test_an_only_image_is_not_judged():
    said = judge(*_inputs(LABELS))
    assert said is not None and said.judged.tolist() == [True] * 9 + [False]


def test_one_class_leaves_nothing_to_tell():
    assert judge(*_inputs(torch.zeros_like(LABELS))) is None


def test_a_class_without_images_gets_no_probability():
    images, texts = drawn()
    said = judge(images[:9], LABELS[:9], texts, SCALE)
    assert said is not None
    assert (said.probabilities[:, 3] == 0).all()
    torch.testing.assert_close(said.probabilities.sum(1), torch.ones(9))


def _inputs(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    images, texts = drawn()
    return images, labels, texts, SCALE


def judgement(probabilities, labels, judged=None):
    every = torch.ones(len(labels), dtype=torch.bool)
    return Judgement(labels, probabilities, torch.zeros(len(labels)), every if judged is None else judged)


TWO_CLASSES = torch.tensor([0, 0, 0, 1, 1, 1])
PROBABILITIES = torch.tensor(
    [[0.9, 0.1], [0.8, 0.2], [0.01, 0.99], [0.2, 0.8], [0.55, 0.45], [0.1, 0.9]]
)  # the third is labelled 0 and looks like 1; the fifth is merely unsure


def test_counting_equals_a_loop():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(40, 5, generator=generator).softmax(1)
    labels = torch.randint(5, (40,), generator=generator)
    judged = torch.rand(40, generator=generator) > 0.2
    expected = []
    for row in range(40):
        believed = []
        for j in range(5):
            own = [float(p[i, j]) for i in range(40) if labels[i] == j and judged[i]]
            if own and float(p[row, j]) >= sum(own) / len(own):
                believed.append((float(p[row, j]), j))
        expected.append(max(believed)[1] if believed and judged[row] else -1)
    assert confident_classes(judgement(p, labels, judged)).tolist() == expected


def test_the_wrong_label_is_named_and_the_unsure_one_is_not():
    (error,) = label_errors(judgement(PROBABILITIES, TWO_CLASSES))
    assert (error.row, error.suggested) == (2, 1)
    assert round(error.label_probability, 3) == 0.01 and round(error.suggested_probability, 3) == 0.99


def test_what_cannot_be_judged_is_not_named():
    judged = torch.arange(6) != 2
    assert not label_errors(judgement(PROBABILITIES, TWO_CLASSES, judged))


def test_no_more_are_named_than_confident_learning_counts():
    p = torch.tensor([[0.96, 0.04], [0.96, 0.04], [0.04, 0.96], [0.03, 0.97], [0.04, 0.96], [0.96, 0.04]])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    # class 1's threshold is the mean of 0.97, 0.96 and 0.04, class 0's that of 0.96, 0.96 and 0.04
    seen = confident_classes(judgement(p, labels))
    count = int(((seen >= 0) & (seen != labels)).sum())
    assert count == 2 and [error.row for error in label_errors(judgement(p, labels))] == [2, 5]


def test_pairs_are_counted_both_ways_and_sorted_by_share():
    labels = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    taken = [0, 0, 1, 1, 1, 1, 1, 0, 2, 2, 2, 0]
    p = torch.nn.functional.one_hot(torch.tensor(taken), 3).float()
    assert overlaps(judgement(p, labels)) == [Overlap(0, 1, 3, 8)]  # one of 0 and 2 may be chance
    assert overlaps(judgement(p, labels, torch.arange(12) != 2)) == [Overlap(0, 1, 2, 7)]


def test_a_small_share_is_no_overlap():
    labels = torch.tensor([0] * 30 + [1] * 30)
    taken = labels.clone()
    taken[:2] = 1
    p = torch.nn.functional.one_hot(taken, 2).float()
    assert overlaps(judgement(p, labels)) == []


def test_the_lowest_hundredth_the_lowest_first():
    odds = torch.arange(150.0)
    odds[[7, 3]] = torch.tensor([-2.0, -1.0])
    found = outliers(odds)
    assert [far.row for far in found] == [7, 3]
    assert found[0].familiarity == 1 / 150


def test_few_images_have_no_hundredth():
    assert outliers(torch.arange(19.0)) == []


def test_a_label_that_an_image_misses_or_has_wrongly():
    generator = torch.Generator().manual_seed(0)
    has = (torch.rand(100, 3, generator=generator) < 0.4).float()
    directions = torch.randn(3, 16, generator=generator)
    x = has @ directions + 0.2 * torch.randn(100, 16, generator=generator)
    wrong = has.clone()
    planted = [(7, int(has[7].argmax())), (12, int(has[12].argmin()))]
    for row, label in planted:
        wrong[row, label] = 1 - wrong[row, label]
    found = multi_label_errors(x, wrong, torch.zeros(3, 16))
    assert {(error.row, error.suggested) for error in found[:2]} == set(planted)
    assert all(error.label_probability < 1 / 20 < error.suggested_probability for error in found)
    assert multi_label_errors(x[:3], has[:3], torch.zeros(3, 16)) == []
