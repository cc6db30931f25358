"""Collages of the benchmark of several labels, and its tables."""

import torch

from benchmarks.multi_label import SIDE, Task, collages, figures, logistic, named, paste, report
from pbprompt.vision.images.sources import open_dataset


def test_collages_are_of_one_split_and_labelled_with_what_is_on_them():
    dataset = open_dataset("sample")
    made = collages(dataset, "train", 40, seed=1)
    labelled = named(dataset)
    assert len(labelled) < len(dataset.classes) and {len(one.items) for one in made} == {1, 2, 4}
    for one in made:
        assert set(one.items) <= set(dataset.train)
        shown = {dataset.classes[item.label] for item in one.items}
        assert set(one.labels) == shown & set(labelled)
    assert any(not one.labels for one in made)
    assert made == collages(dataset, "train", 40, seed=1) != collages(dataset, "train", 40, seed=2)
    assert {paste(dataset, one.items).size for one in made[:6]} == {(SIDE, SIDE)}


def test_logistic_regression_has_the_figures_of_all_others():
    generator = torch.Generator().manual_seed(0)
    has = torch.rand(80, 3, generator=generator) < 0.4
    has[:, 2] = False
    noise = torch.randn(80, 5, generator=generator)
    x = torch.nn.functional.normalize(has.float() @ torch.eye(3, 5) + 0.1 * noise)
    found = logistic(Task(x[:50], has[:50], x[50:], has[50:]))
    assert found["map"] > 0.9 and found["micro_f1"] > 0.8
    assert set(found) == set(figures(torch.rand(30, 3), has[50:], torch.full((3,), 0.5)))


def test_the_report_averages_draws():
    own = {"dataset": "toys", "split": "test"}
    shares = dict.fromkeys(("map", "micro_f1", "macro_f1"))
    rows = [own | {"method": "names", "map": 0.25}]
    rows += [
        own | {"method": method, "size": 50, "draw": draw} | dict.fromkeys(shares, 0.5 + draw / 10)
        for method in ("conjugate", "logistic")
        for draw in (1, 2)
    ]
    text = report({"commit": "abc", "rows": rows})
    assert "commit abc" in text and "| names alone | 25.0 |" in text
    assert "| `conjugate`, one-vs-rest | 65.0 / 65.0 / 65.0 |" in text
