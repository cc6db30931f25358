"""Rows of the table of parts: what each changes, and what is shown of features."""

from pathlib import Path

import numpy as np

from benchmarks import evidence_parts, on_clip
from benchmarks.on_clip import Source
from pbprompt.evidence import expert, novelty


def test_every_row_changes_something_and_leaves_it_as_it_was():
    titles = [title for title, _ in evidence_parts.rows()]
    assert len(set(titles)) == len(titles)
    for title, change in evidence_parts.rows():
        before = [getattr(module, name) for module, name, _ in change.values]
        with evidence_parts.changed(change):
            now = [getattr(module, name) for module, name, _ in change.values]
            assert title == "all parts" or change.settings or now != before, title
        assert [getattr(module, name) for module, name, _ in change.values] == before


def test_folds_stay_whole_numbers():
    with evidence_parts.changed(dict(evidence_parts.rows())["folds halved"]):
        assert expert.FOLDS == 8 and isinstance(expert.FOLDS, int)


def test_a_row_on_clips_features(monkeypatch):
    chance = np.random.default_rng(0)
    labels = np.arange(60) % 4
    images = np.eye(4, 8)[labels] + 0.2 * chance.normal(size=(60, 8))
    images = (images / np.linalg.norm(images, axis=1, keepdims=True)).astype(np.float32)
    source = Source("clouds, ViT-B/32", (images, labels), None, np.eye(4, 8, dtype=np.float32))
    monkeypatch.setattr(on_clip, "sources", lambda folder: [source])
    title, found = evidence_parts.row(("usual ρ halved", None, Path()))
    assert novelty.USUAL[3] == 1.0
    shown = evidence_parts.cells(found)
    assert title == "usual ρ halved"
    assert list(shown) == ["CLIP 1", "CLIP 2", "CLIP 4", "CLIP, joint", "CLIP, recalled"]
    assert float(shown["CLIP 4"].split(" / ")[0]) > 90 and float(shown["CLIP, joint"]) > 80
