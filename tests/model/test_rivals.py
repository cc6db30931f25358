"""Plain classifiers on the same draw: which are fitted, and to what."""

from types import SimpleNamespace

import pytest
import torch

from pbprompt.core.likelihood import unit
from pbprompt.data.items import Dataset, Item
from pbprompt.features.bank import Features
from pbprompt.model import rivals
from pbprompt.model.rivals import probe_is_quick, rival_figures

CLASSES = ("cat", "dog", "car")


class Made:
    """Features that are made up: classes lie apart, by an item's label."""

    def __init__(self, backbone):
        self.backbone = backbone

    def encode(self, root, items):
        labels = torch.tensor([item.label for item in items])
        noise = torch.randn(len(items), self.backbone.embed_dim, generator=torch.Generator().manual_seed(0))
        centres = 4 * torch.eye(self.backbone.embed_dim)[labels]
        side = self.backbone.grid
        patches = torch.zeros(len(items), side[0] * side[1], self.backbone.embed_dim, dtype=torch.float16)
        return Features(noise + centres, patches, labels)


@pytest.fixture(scope="module")
def bank(tiny_vit):
    return Made(tiny_vit)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    items = tuple(Item(f"{n}.png", n % 3) for n in range(12))
    return Dataset("made", tmp_path_factory.mktemp("made"), CLASSES, items, (), items)


def test_both_are_fitted_to_the_training_images(few, bank):
    test = bank.encode(few.root, few.test)
    found = rival_figures(few, bank, test, seed=1)
    assert list(found) == ["nearest-mean", "linear-probe"]
    x = unit(test.global_)
    means = torch.stack([x[test.labels == place].mean(0) for place in range(3)])
    right = (x @ unit(means).T).argmax(1) == test.labels
    assert found["nearest-mean"]["accuracy"] == pytest.approx(right.float().mean().item())
    assert set(found["linear-probe"]) >= {"accuracy", "nll", "ece"}


def test_a_model_is_no_rival_of_its_own(few, bank):
    test = bank.encode(few.root, few.test)
    assert list(rival_figures(few, bank, test, 1, own="linear-probe")) == ["nearest-mean"]


def test_the_probe_is_left_out_where_it_takes_long(few, bank, monkeypatch):
    monkeypatch.setattr(rivals, "MOST_PRODUCTS", 12 * 3 * bank.backbone.embed_dim - 1)
    assert not probe_is_quick(few, bank)
    assert list(rival_figures(few, bank, bank.encode(few.root, few.test), 1)) == ["nearest-mean"]


def test_sixteen_shots_of_the_pets_are_quick_and_of_a_thousand_classes_not():
    def data(images, classes):
        return SimpleNamespace(train=range(images), classes=range(classes))

    bank = SimpleNamespace(backbone=SimpleNamespace(embed_dim=512))
    assert probe_is_quick(data(16 * 37, 37), bank) and not probe_is_quick(data(16_000, 1000), bank)


def test_a_class_without_a_training_image_has_no_rivals(few, bank):
    some = Dataset("made", few.root, CLASSES, few.train[:2], (), few.test)
    assert rival_figures(some, bank, bank.encode(few.root, few.test), 1) == {}
