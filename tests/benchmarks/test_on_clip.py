"""The comparison on CLIP's features: who is measured, on which rows, and what the page says of it."""

import numpy as np
import pytest
import torch

from benchmarks import on_clip
from benchmarks.on_clip import ALONE, BY_NAME, DEFAULT, MIX, RIVALS, Source

CLASSES, WIDTH = 3, 8


def cloud(count, seed, noise=0.2):
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    found = np.eye(CLASSES, WIDTH)[labels] + noise * chance.normal(size=(count, WIDTH))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def source():
    return Source("clouds", cloud(30, 1), cloud(40, 2), np.eye(CLASSES, WIDTH, dtype=np.float32), (1, 4))


def test_so_many_of_each_class_are_drawn_and_the_rest_of_a_split_of_its_own_judges(source):
    rows = source.drawn(4, seed=1)
    assert np.bincount(source.train[1][rows]).tolist() == [4, 4, 4]
    assert len(source.drawn(100, seed=1)) == 30
    (_, labels), judges = source._replace(held_out=None).judging(rows)
    assert len(labels) == 30 and judges.sum() == 18 and not judges[rows].any()


def test_every_method_is_measured_and_told_apart(source):
    found = on_clip.measured(source, 4)
    assert set(found["rows"]) == {DEFAULT, BY_NAME, MIX, ALONE, *RIVALS}
    for row in found["rows"].values():
        assert len(row["figures"]) == len(on_clip.SEEDS)
        assert all(accuracy > 80 for accuracy, _, _ in row["figures"])
    assert found["rows"][DEFAULT]["default ahead"] == {"accuracy": (0, 0), "NLL": (0, 0)}


def test_without_names_only_those_that_read_none_are_measured(source):
    found = on_clip.measured(source._replace(texts=None), 1)
    assert set(found["rows"]) == {ALONE, *(name for name, one in RIVALS.items() if not one.reads_text)}


def test_a_rivals_temperature_is_by_images_left_out(source):
    images, labels = map(torch.from_numpy, cloud(60, 1, noise=0.6))
    texts, asked = torch.from_numpy(source.texts), images.mean(0) + 0.02 * images[:10]
    plain, tempered = (
        on_clip.rival(on_clip.Rival("lp++", tempered=by), texts, images, labels, asked).log()
        for by in (False, True)
    )
    steps, tempered_steps = (each[:, 0] - each[:, 1] for each in (plain, tempered))
    slope = (steps @ tempered_steps) / (steps @ steps)
    torch.testing.assert_close(tempered_steps, slope * steps, rtol=1e-3, atol=1e-3)
    assert abs(float(slope) - 1) > 0.01


def test_intervals_are_of_paired_differences():
    mine = np.zeros((2, 2, 50))
    theirs = mine + np.array([1.0, -0.5])[:, None]
    theirs[:, :, :10] = mine[:, :, :10] = np.nan  # these do not judge
    found = on_clip.ahead(mine, theirs)
    np.testing.assert_allclose(found["accuracy"], (-1, -1), atol=1e-5)
    np.testing.assert_allclose(found["NLL"], (0.5, 0.5), atol=1e-5)
