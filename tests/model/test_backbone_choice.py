"""Which of several backbones is worth its time, against rules by hand."""

import numpy as np
import pytest

from pbprompt.model.backbone_choice import Tried, behind, cheapest


def row(nll: float, seconds: float, low: float) -> Tried:
    return Tried({"nll": nll, "accuracy": 0.5}, seconds, (nll - 0.3, low, nll))


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (
            {(0,): (0.4, 1.0, -0.01), (1,): (0.3, 3.0, 0.0), (0, 1): (0.35, 4.0, -0.1)},
            (0,),
        ),  # nobody can tell
        ({(0,): (0.4, 1.0, 0.02), (1,): (0.3, 3.0, 0.0), (0, 1): (0.35, 4.0, -0.1)}, (1,)),  # surely worse
        ({(0,): (0.4, 1.0, 0.02), (1,): (0.5, 1.0, 0.1), (0, 1): (0.3, 2.0, 0.0)}, (0, 1)),
        ({(0,): (0.4, 1.0, -0.01), (1,): (0.3, 1.05, 0.0), (0, 1): (0.35, 2.0, -0.1)}, (1,)),  # cost the same
    ],
)
def test_the_cheapest_that_is_not_worse(rows, chosen):
    assert cheapest({places: row(*values) for places, values in rows.items()}) == chosen


def test_what_one_is_behind_is_paired():
    chance = np.random.default_rng(0)
    shared = chance.normal(size=400) * 5  # hard images are hard for both
    gap = 0.1 + 0.2 * chance.normal(size=400)
    mean, low, high = behind(shared, shared - gap)
    error = gap.std() / 20
    assert mean == pytest.approx(gap.mean(), abs=1e-6)
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.3 * error)
    assert behind(shared, shared) == (0, 0, 0)
