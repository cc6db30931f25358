"""The measurement of series: bursts, draws of them, and the table."""

import numpy as np
import torch
from PIL import Image

from benchmarks.bursts import VIEWS, Bursts, views
from benchmarks.problems import Labelled
from benchmarks.promises import kept, means
from benchmarks.series import ACCURACIES, found, show


def test_a_burst_is_of_one_photograph_and_no_two_views_are_alike():
    photograph = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    made = views(photograph, np.random.default_rng(1))
    assert len(made) == VIEWS and len({one.tobytes() for one in made}) == VIEWS
    assert all(0.7 * 60 <= one.width < 60 and one.height < 40 for one in made)


def test_whole_bursts_are_drawn():
    series = torch.arange(60) // 4
    drawn = Bursts(Labelled(torch.randn(60, 3), series % 3), series).draw(2, 1)
    assert len(drawn.series) == 24 and drawn.photographs.labels.bincount().tolist() == [8, 8, 8]
    assert set(drawn.series.bincount().tolist()) == {0, 4}


def test_photographs_without_twins_are_each_by_itself():
    apart = torch.randn(60, 32, generator=torch.Generator().manual_seed(0))
    assert found(Labelled(apart, torch.arange(60) % 3), 0.2) is None


def test_what_is_shown():
    promises = {str(wanted): kept(9, 10, 20, wanted) for wanted in ACCURACIES}
    one = {"accuracy": 0.5, "nll": 1.25, "ece": 0.1, "promises": promises, "none": 0.05}
    told = means([one | {"in series": 0.2, "series": 9.0}, one | {"in series": 0.4, "series": 7.0}])
    text = show({"sets": {"pets": {"twins": told}}})
    assert "| pets | twins | 30% | 50.0% | 1.250 | 10.0% | 5.0% | 50% / 90.0% / 100% |" in text
    assert text.rstrip().endswith("| 50% / 90.0% / 0% |")
