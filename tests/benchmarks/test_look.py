"""What the benchmark of `look` plants, and how it counts."""

import random

import pytest
import torch
from PIL import Image

from benchmarks.look import KINDS, Bench, rate
from pbprompt.vision.towers.backbone import Backbone


def test_recall_and_precision():
    found = torch.tensor([True, True, False, False])
    planted = torch.tensor([True, False, True, True])
    assert rate(found, planted).recall == pytest.approx(1 / 3) and rate(found, planted).precision == 0.5


def test_copies_are_what_they_are_called(tmp_path):
    Image.effect_noise((100, 80), 60).convert("RGB").save(tmp_path / "one.png")
    made = {
        kind: make(tmp_path / "one.png", tmp_path / kind, random.Random(1)) for kind, make in KINDS.items()
    }
    copied, again, half, cropped = made.values()
    assert copied.read_bytes() == (tmp_path / "one.png").read_bytes()
    assert Image.open(again).size == (100, 80) and Image.open(again).format == "JPEG"
    assert Image.open(half).size == (50, 40)
    width, height = Image.open(cropped).size
    assert 89 <= width < 100 and 71 <= height < 80


def test_planted_labels_and_images_are_counted(tiny_vit: Backbone):
    bench = Bench("sample", None, tiny_vit)
    bench.features = bench.features.subset(range(0, len(bench.features), 4))
    *rates, clean = bench.wrong_labels(seed=1)
    assert rates[2].recall > 0.8 and 0 <= clean < 0.3  # random features disagree with nearly every label
    assert 0 <= bench.foreign_images(bench.features, seed=1) <= 1
