"""Confident learning's count against a plain loop, and which images are named."""

import torch

from pbprompt.findings.label_errors import confident_classes, label_errors, multi_label_errors

JUDGED = torch.ones(6, dtype=torch.bool)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
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
    assert confident_classes(p, labels, judged).tolist() == expected


def test_the_wrong_label_is_named_and_the_unsure_one_is_not():
    (error,) = label_errors(PROBABILITIES, LABELS, JUDGED)
    assert (error.row, error.label, error.suggested) == (2, 0, 1)
    assert round(error.label_probability, 3) == 0.01 and round(error.suggested_probability, 3) == 0.99


def test_what_cannot_be_judged_is_not_named():
    judged = JUDGED.clone()
    judged[2] = False
    assert not label_errors(PROBABILITIES, LABELS, judged)


def test_no_more_are_named_than_confident_learning_counts():
    p = torch.tensor([[0.96, 0.04], [0.96, 0.04], [0.04, 0.96], [0.03, 0.97], [0.04, 0.96], [0.96, 0.04]])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    # class 1's threshold is the mean of 0.97, 0.96 and 0.04, class 0's that of 0.96, 0.96 and 0.04
    seen = confident_classes(p, labels, JUDGED)
    count = int(((seen >= 0) & (seen != labels)).sum())
    assert count == 2 and [error.row for error in label_errors(p, labels, JUDGED)] == [2, 5]


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
