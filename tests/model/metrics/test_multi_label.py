"""Figures of several labels, beside scikit-learn's."""

import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from pbprompt.model.metrics.multi_label import MultiLabelEvaluation, average_precision, mean_average_precision

NAMES = ("beach", "dog", "cat", "snow")
LEVELS = (0.3, 0.5, 0.5, 0.9)


def figures_of(said, has):
    paths = tuple(f"{row}.jpg" for row in range(len(has)))
    return MultiLabelEvaluation(NAMES[: has.shape[1]], paths, has, said, LEVELS[: has.shape[1]]).figures


@pytest.fixture(scope="module")
def answers():
    """Probabilities with many ties, what is there, and what was given."""
    generator = torch.Generator().manual_seed(3)
    said = (torch.rand(50, 4, generator=generator) * 10).round() / 10
    has = torch.rand(50, 4, generator=generator) < torch.tensor([0.1, 0.3, 0.5, 0.7])
    return said, has, said >= torch.tensor(LEVELS)


def test_as_scikit_learn_has_them(answers):
    said, has, given = answers
    figures = figures_of(said, has)
    y, p, g = (part.numpy() for part in (has, said, given))
    for c, one in enumerate(figures["labels"]):
        assert one["average_precision"] == pytest.approx(average_precision_score(y[:, c], p[:, c]))
        assert one["f1"] == pytest.approx(f1_score(y[:, c], g[:, c]))
    assert figures["map"] == pytest.approx(average_precision_score(y, p, average="macro"))
    assert mean_average_precision(said, has) == pytest.approx(figures["map"])
    for mean in ("micro", "macro"):
        for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
            assert figures[mean][name] == pytest.approx(score(y, g, average=mean)), (mean, name)
    assert figures["exact"] == pytest.approx((y == g).all(1).mean())
    assert (figures["labels_there"], figures["labels_given"]) == (int(y.sum()), int(g.sum()))


def test_a_label_of_no_image_is_in_no_mean(answers):
    said, has, _ = answers
    fewer = has.clone()
    fewer[:, 1] = False
    figures = figures_of(said, fewer)
    shown = [one for one in figures["labels"] if one["class"] != "dog"]
    assert figures["labels"][1]["average_precision"] is None and figures["labels_without_image"] == 1
    assert figures["map"] == pytest.approx(sum(one["average_precision"] for one in shown) / 3)
    assert figures["macro"]["f1"] == pytest.approx(sum(one["f1"] for one in shown) / 3)


def test_nothing_there_and_nothing_given():
    empty = torch.zeros(3, 2, dtype=torch.bool)
    figures = figures_of(torch.zeros(3, 2), empty)
    assert figures["map"] is None and figures["micro"]["f1"] is None and figures["macro"]["f1"] is None
    assert figures["exact"] == 1


def test_equal_scores_rank_nothing():
    has = torch.tensor([True, False, False, False])
    assert average_precision(torch.ones(4), has) == average_precision(torch.ones(4), has.flip(0)) == 0.25
