"""The measurement of promises: skewed draws, what is kept, and the tables."""

import numpy as np
import torch

from benchmarks.problems import Labelled, Problem
from benchmarks.promises import kept, means, recalls, show, skewed


def test_skewed_draws_go_from_few_to_many():
    labels = torch.arange(4).repeat_interleave(80)
    every = Labelled(torch.randn(320, 3), labels)
    counts = skewed(Problem(tuple("abcd"), "{}", every, every), 1, 70).labels.bincount().tolist()
    assert sorted(counts) == [6, 14, 31, 70]


def test_what_is_kept_and_shown():
    assert kept(9, 10, 20, 0.9) == {"answered": 0.5, "right": 0.9, "kept": 1.0}
    assert kept(8, 10, 20, 0.9)["kept"] == 0 and kept(0, 0, 20, 0.9)["kept"] == 1
    of = recalls(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), rare=0)
    assert of == {"macro recall": 0.75, "recall of the rarest": 0.5}
    one = {a: kept(9, 10, 20, 0.9) for a in ("0.8", "0.9", "0.95")}
    mix = {how: {**of, **one} for how in ("as-trained", "balanced")} | {
        "LDA": of,
        "distance": {"training": 0.1},
    }
    wide = {"by level 0": 0.3, "by level 1": 0.2}
    groups = {a: {"reject-at": kept(8, 10, 20, 0.9), "back-off": kept(9, 10, 20, 0.9) | wide} for a in one}
    text = show({"mix": {"pets": means([mix, mix])}, "groups": {"pets": groups}})
    assert "| pets | back-off | 90% | 50.0% | 90.0% | 100.0% | 30.0% · 20.0% |" in text
    assert "| pets | LDA | 75.0% | 50.0% |" in text and "| 50.0% | 80% |" in text
