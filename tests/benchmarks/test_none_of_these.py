"""The scores that tell images of none of the classes, on two clouds and a third."""

import numpy as np
import pytest
import torch

from benchmarks import none_of_these
from benchmarks.none_of_these import Scores, _squared, halved, told
from benchmarks.problems import Labelled, Problem, bank


def cloud(centres, count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(centres)
    noise = 0.3 * torch.randn(count, centres.shape[1], generator=generator)
    return Labelled(centres[labels] + noise, labels)


def test_every_score_tells_what_is_far():
    centres = 3 * torch.eye(3, bank().backbone.embed_dim)
    known = cloud(centres[:2], 60, seed=1)
    scores = Scores(("cat", "dog"), "a photo of a {}.", known)
    found = told(scores(cloud(centres[:2], 40, seed=2)), scores(cloud(centres[2:], 40, seed=3)))
    assert {"conjugate", "kNN", "Mahalanobis", "relative", "energy", "MCM"} <= found.keys()
    assert min(found[name] for name in ("conjugate", "kNN", "Mahalanobis")) > 95


def test_squared_distances():
    generator = torch.Generator().manual_seed(0)
    x, means = torch.randn(4, 3, generator=generator), torch.randn(2, 3, generator=generator)
    root = torch.randn(3, 3, generator=generator)
    wanted = [[float((a - m) @ root @ root.T @ (a - m)) for m in means] for a in x]
    np.testing.assert_allclose(_squared(x, means, root @ root.T), wanted, rtol=1e-4)


def test_halves_share_no_class():
    images = cloud(torch.eye(3, 4), 9, seed=0)
    half, others = halved(Problem(("a", "b", "c"), "{}", images, images))
    assert half.classes == ("a", "b") and set(half.train.labels.tolist()) == {0, 1}
    assert set(others.labels.tolist()) == {2} and len(half.held_out.labels) + len(others.labels) == 9


def test_the_table_has_the_mean_and_the_worst_pair():
    def row(kind, shots, *far):
        pairs = {str(number): {"kNN": value} for number, value in enumerate(far)}
        return {"kind": kind, "shots": shots, "far": pairs, "near": {"kNN": 70.0}}

    rows = [row(kind, shots, 90.0, 80.0) for kind in ("narrow", "5") for shots in none_of_these.SHOTS]
    assert "| kNN | 85.0 | 80.0 | 70.0 |" in none_of_these.shown(rows)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
