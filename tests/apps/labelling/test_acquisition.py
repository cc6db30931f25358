"""Choosing images against brute force and by the chances of the draws."""

import pytest
import torch

from pbprompt.apps.labelling.acquisition import RULES, choose_rows, margin_doubt, spread_out
from pbprompt.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_margin_equals_a_sort_of_each_row():
    p = torch.rand(30, 7, generator=generator()).softmax(1)
    expected = [1 - (row[-1] - row[-2]) for row in (sorted(line) for line in p.tolist())]
    torch.testing.assert_close(margin_doubt(p), torch.tensor(expected))
    assert margin_doubt(torch.tensor([[1.0000001, 0.0]])).tolist() == [0]
    assert margin_doubt(torch.ones(3, 1)).tolist() == [0, 0, 0]  # a single class is never in doubt


@pytest.mark.parametrize("by", ["margin", "epistemic"])
def test_by_score_the_highest_come_first(by):
    scores = torch.rand(25, generator=generator())
    x = torch.randn(25, 3, generator=generator())
    expected = sorted(range(25), key=lambda row: -float(scores[row]))[:6]
    assert choose_rows(x, scores, 6, by, generator()).tolist() == expected


@pytest.mark.parametrize("by", RULES)
def test_all_of_them_are_all_of_them(by):
    scores = torch.tensor([0.0, 1.0, 0.5, 0.0])
    rows = choose_rows(torch.eye(4), scores, 4, by, generator())
    assert sorted(rows.tolist()) == [0, 1, 2, 3]


def test_draws_follow_weight_times_squared_distance():
    """The frequencies of second draws against those computed from the definition, in numbers."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [-1.0, 0.1]])
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    unit = torch.nn.functional.normalize(x, dim=1)
    expected = torch.zeros(4, 4)
    for first in range(4):
        chance = weights * (unit - unit[first]).square().sum(1)
        expected[first] = weights[first] / weights.sum() * chance / chance.sum()
    counts, source, tries = torch.zeros(4, 4), generator(1), 4000
    for _ in range(tries):
        first, second = spread_out(x, weights, 2, source).tolist()
        counts[first, second] += 1
    assert (counts / tries - expected).abs().max() < 0.03  # over three standard errors
    assert (counts.diagonal() == 0).all()


def test_copies_are_drawn_last():
    x = torch.cat([torch.ones(20, 2), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])])
    for seed in range(10):
        chosen = spread_out(x, torch.ones(22), 3, generator(seed)).tolist()
        assert {20, 21} < set(chosen)


def test_seeds_decide_draws():
    x, scores = torch.randn(50, 4, generator=generator()), torch.rand(50, generator=generator())
    for by in ("diverse", "random"):
        once, again, other = (choose_rows(x, scores, 5, by, generator(seed)).tolist() for seed in (1, 1, 2))
        assert once == again != other


def test_what_cannot_be_chosen_is_said():
    x, scores = torch.eye(3), torch.ones(3)
    with pytest.raises(InputError, match="give 1 to 3"):
        choose_rows(x, scores, 4, "margin", generator())
    with pytest.raises(InputError, match="use margin, epistemic, diverse, random"):
        choose_rows(x, scores, 1, "best", generator())  # type: ignore[arg-type]
