"""How the study of photographs without labels makes its pools, and what it makes of its figures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from benchmarks import unlabelled
from benchmarks.problems import Labelled, Problem
from benchmarks.unlabelled_peers import BY_NAMES, PEERS
from benchmarks.unlabelled_pools import drawn, pools, skewed, zipf

SIZES = (40, 30, 20, 10)


def made() -> Problem:
    """Each photograph is known by its number."""
    labels = torch.arange(4).repeat_interleave(torch.tensor(SIZES))
    images = torch.arange(100).unsqueeze(1).float()
    return Problem(("a", "b", "c", "d"), "{}", Labelled(images, labels), Labelled(images, labels))


def test_the_pool_is_what_the_draw_leaves():
    given = made()
    few, rest = drawn(given, 3, seed=1)
    assert few.labels.bincount().tolist() == [3] * 4
    assert torch.equal(few.images, given.draw(3, 1).images)
    both = torch.cat([few.images, rest.images]).squeeze(1).sort().values
    assert torch.equal(both, given.train.images.squeeze(1))
    none, every = drawn(given, 0, seed=1)
    assert len(none.labels) == 0 and len(every.labels) == 100


def test_sizes_follow_the_profile_as_far_as_there_are_photographs():
    labels, chance = made().train.labels, torch.Generator().manual_seed(0)
    rows = skewed(labels, zipf(labels, 4), chance)
    assert labels[rows].bincount().tolist() == [40, 20, 13, 10] and len(set(rows.tolist())) == 83
    upside_down = torch.tensor([0.1, 0.2, 1.0, 0.9]).double()
    assert labels[skewed(labels, upside_down, chance)].bincount().tolist() == [2, 4, 20, 10]
    gone = labels[labels != 2]  # a class of which nothing is left cannot be the largest
    assert gone[skewed(gone, upside_down, chance)].bincount().tolist() == [1, 2, 0, 10]


def test_pools_are_what_their_names_say():
    given, other = made(), torch.full((60, 1), -1.0)
    found = pools(given, given.train, other, seed=1)
    assert list(found) == ["plain", "zipf", "dirichlet", "foreign30", "foreign50", "half", "twenty"]
    assert len(found["plain"]) == 100 and len(found["twenty"]) == 20
    foreign = {name: int((found[name] < 0).sum()) / len(found[name]) for name in ("foreign30", "foreign50")}
    assert foreign["foreign30"] == pytest.approx(0.3, abs=0.01) and foreign["foreign50"] == 0.5
    labels = given.train.labels[found["half"].squeeze(1).long()]
    assert len(labels.unique()) == 2
    again = pools(given, given.train, other, seed=1)
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert not torch.equal(found["twenty"], pools(given, given.train, other, seed=2)["twenty"])


def task(data: str, seed: int, accuracy: float) -> tuple[dict, dict]:
    row = {"data": data, "kind": "narrow", "shots": 1, "seed": seed, "held out": "all"}
    row["figures"] = {"without": [50.0, 1.0, 5.0], "plain": [accuracy, 0.9, 4.0]}
    row["pool counts as"] = {"plain": 10.0 if seed == 1 else 0.0}
    flat = np.ones((3, unlabelled.RESAMPLES))
    vectors = {name: flat * np.array(figures)[:, None] for name, figures in row["figures"].items()}
    return row, vectors


def test_the_summary_is_of_problems_alike_and_paired():
    found = [task("sample", 1, 60), task("sample", 2, 60), task("caltech101", 1, 52), task("pacs", 1, 90)]
    rows = unlabelled.summary(*(list(part) for part in zip(*found, strict=True)))
    own = {(row["group"], row["row"]): row for row in rows}
    assert own["narrow", "plain"]["accuracy"] == pytest.approx([56, 6, 6, 6])  # each dataset counts alike
    assert own["narrow", "without"]["accuracy"] == pytest.approx([50, 0, 0, 0])
    assert own["broad", "plain"]["NLL"] == pytest.approx([0.9, -0.1, -0.1, -0.1])
    assert own["narrow", "plain"]["used"] == pytest.approx(2 / 3)
    text = unlabelled.shown(rows)
    assert "| plain | 56.0 (+6.0, +6.0 to +6.0) |" in text and "| without | 1.000 |" in text
    assert "| plain | 67 |" in text and len(text.split("\n\n")) == 8


def test_draws_that_differ_widen_the_interval():
    found = [task("sample", seed, accuracy) for seed, accuracy in ((1, 50), (2, 60), (3, 70))]
    rows = unlabelled.summary(*(list(part) for part in zip(*found, strict=True)))
    _, gain, low, high = next(row for row in rows if row["row"] == "plain")["accuracy"]
    assert gain == pytest.approx(10) and low < 2 and high > 18


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small datasets, as `benchmarks/problems.py` writes them."""
    folder, chance = tmp_path_factory.mktemp("features"), torch.Generator().manual_seed(0)
    for name in ("sample", "flowers102"):
        centres, tensors = torch.randn(3, 256, generator=chance), {}
        for part, count in (("train", 8), ("val", 4)):
            labels = torch.arange(3).repeat(count)
            noise = 0.5 * torch.randn(len(labels), 256, generator=chance)
            tensors |= {part: F.normalize(centres[labels] + noise, dim=1), f"{part} labels": labels}
        words = json.dumps([["cat", "dog", "car"], "a photo of a {}."])
        save_file(tensors, folder / f"{name}.safetensors", {"words": words})
    return folder


@pytest.mark.parametrize(("shots", "peers"), [(0, BY_NAMES), (2, tuple(PEERS))])
def test_a_task_has_every_row_and_its_resamples(features, shots, peers):
    asked = unlabelled.Asked("sample", "narrow", shots, 1, features, "val", together=False)
    ((row, vectors),) = unlabelled.measured(asked)
    every = ["plain", "zipf", "dirichlet", "foreign30", "foreign50", "half", "twenty"]
    assert list(row["figures"]) == ["without", *every, *peers] and list(row["pool counts as"]) == every
    assert all(np.isfinite(values).all() for values in vectors.values())
    for name, (accuracy, nll, _) in row["figures"].items():
        assert vectors[name][0].mean() == pytest.approx(accuracy, abs=2)
        assert vectors[name][1].mean() == pytest.approx(nll, abs=0.1 + 0.05 * nll)
    if shots:
        assert row["figures"]["without"][0] > 80


def test_together_also_judges_a_skewed_choice(features):
    asked = unlabelled.Asked("sample", "narrow", 1, 1, features, "val", together=True)
    found = [row for row, _ in unlabelled.measured(asked)]
    assert [row["held out"] for row in found] == ["all", "skewed"]
    assert all(list(row["figures"]) == ["without", "together", *PEERS] for row in found)
