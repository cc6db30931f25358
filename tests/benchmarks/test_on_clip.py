"""The comparison on CLIP's features: who is measured, on which rows, and what the page says of it."""

import json

import numpy as np
import pytest
import torch

from benchmarks import on_clip
from benchmarks.on_clip import ALONE, BY_NAME, DEFAULT, MIX, RIVALS, Source
from pbprompt import EvidenceClassifier
from pbprompt.evidence import novelty

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


def test_half_of_the_classes_by_name(source):
    joint, new, old, *_ = on_clip.half_by_name(source, 4, seed=1)
    assert min(joint, new, old) > 80  # two have photographs, the third a name


def test_a_foreign_name_takes_what_it_would_take_alone(source, monkeypatch):
    monkeypatch.setattr(novelty, "BY_ONE", 0.6)
    monkeypatch.setattr(novelty, "BY_TWENTY", 0.6)
    names = 0.8 * np.eye(CLASSES, WIDTH, dtype=np.float32) + 0.6 * np.eye(CLASSES, WIDTH, 3, dtype=np.float32)
    found = on_clip.of_all_classes([], source._replace(title="clouds, T"), 4, (names, np.array(list("012"))))
    assert found["above 1 %"] == 3 and found["mean"] == pytest.approx(np.mean(list(found["most"].values())))
    rows = source.drawn(4, on_clip.SEEDS[0])
    for name, share in found["most"].items():
        model = EvidenceClassifier(dict(enumerate([*source.texts, names[int(name)]])), on_clip.SCALE)
        model.partial_fit(*(part[rows] for part in source.train), classes=np.arange(CLASSES + 1))
        took = 100 * (model.predict(source.held_out[0]) == CLASSES).mean()
        assert took == pytest.approx(share, abs=2.6)  # of forty; by the draws of the weights


def test_images_without_labels_beside_names(source):
    found = on_clip.with_a_folder(source)
    assert len(found) == 4 and all(accuracy > 80 for rows in found.values() for accuracy, _, _ in rows)


def test_all_that_is_told_by_name_is_shown(source):
    apart = source._replace(title="clouds, T"), source._replace(title="others, T", held_out=cloud(40, 3, 0.9))
    names = np.eye(CLASSES, WIDTH, 3).astype(np.float32), np.array(["fog", "mist", "haze"])
    found = on_clip.by_name(apart, apart[0]._replace(shots=(1, 4, 8)), names)
    record = {"by name": {"clouds": found}, "folder": {"clouds": on_clip.with_a_folder(source)}}
    page = on_clip.told_by_name(record)
    assert "| clouds | 1 |" in page and "| clouds | 8 |" in page
    assert found["8"]["all"]["other sets"] > 60 and "other sets" not in found["1"]["all"]


def test_rivals_are_added_to_what_was_measured(source, tmp_path, monkeypatch):
    np.savez(tmp_path / "names.npz", vitb32_text=np.eye(CLASSES, WIDTH, 3), names=np.array(list("abc")))
    given = source._replace(title="clouds, ViT-B/32", shots=(1,))
    monkeypatch.setattr(on_clip, "sources", lambda folder: [given])
    monkeypatch.setattr(on_clip, "FILES", ("names",))
    monkeypatch.setattr(on_clip, "RIVALS", {"LP++": RIVALS["LP++"]})
    out = tmp_path / "found.json"

    def run(*more):
        monkeypatch.setattr("sys.argv", ["", "--features", str(tmp_path), "--out", str(out), *more])
        on_clip.main()
        return json.loads(out.read_text())

    before = run("--without-rivals")
    assert set(before["figures"][given.title]["1"]["rows"]) == {DEFAULT, BY_NAME, MIX, ALONE}
    after = run()
    assert "LP++" in after["figures"][given.title]["1"]["rows"] and given.title in after["measured again"]
    monkeypatch.setattr(on_clip, "measured", None)  # nothing is left to measure
    assert run() == after
