"""Photographs that count as one, in all that judges a model."""

from pathlib import Path

import pytest
import torch

from pbprompt.apps.classifier.tuning import GivenFeatures
from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.rivals.nearest import NearestMean
from pbprompt.evidence.series import Series
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model import series
from pbprompt.model.evaluate import calibrate_and_evaluate
from pbprompt.model.series import possible_series, series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "car")
SCENES, TWINS = 15, 4


@pytest.fixture(scope="module")
def bursts(tiny_vit):
    """Bursts of four, five of each class, of which nothing tells the classes apart."""
    chance, of = torch.Generator().manual_seed(0), torch.arange(SCENES * TWINS) // TWINS
    scenes = torch.randn(SCENES, tiny_vit.embed_dim, generator=chance)
    images = scenes[of] + 0.02 * torch.randn(len(of), tiny_vit.embed_dim, generator=chance)
    return GivenFeatures(tiny_vit, Encoded(images, torch.zeros(len(of), 4, tiny_vit.embed_dim)))


def dataset(*, named: bool) -> Dataset:
    rows = range(SCENES * TWINS)
    items = (Item(str(row), row // TWINS % 3, group=f"s{row // TWINS}" if named else "") for row in rows)
    return Dataset("own", Path(), CLASSES, train=tuple(items))


def test_series_are_named_or_found(bursts):
    named, found = (
        series_of(one, one.train, bursts, "") for one in (dataset(named=True), dataset(named=False))
    )
    assert named.tolist() == [row // TWINS for row in range(SCENES * TWINS)]
    assert [named[row].item() for row in found] == named.tolist()  # by the row of its first one
    data = dataset(named=False)
    assert series_of(data, data.train, bursts, "none") is None
    assert series_of(data, data.train[::TWINS], bursts, "") is None  # each by itself


def test_too_many_photographs_to_compare_are_refused_where_it_was_asked_for(bursts, monkeypatch):
    monkeypatch.setattr(series, "MOST", 59)
    data = dataset(named=False)
    with pytest.raises(
        InputError, match="near-duplicates: compares 59 photographs at most, and there are 60"
    ):
        series_of(data, data.train, bursts, "near-duplicates")
    assert series_of(data, data.train, bursts, "") is None


@pytest.mark.parametrize("kind", [Conjugate, NearestMean])
def test_promises_rest_on_series(bursts, kind):
    data = dataset(named=True)
    model = calibrate_and_evaluate(TunedModel.fit(data, bursts, kind, make_config(kind)), data, bursts)
    assert model.calibration.rests_on == "60 training images in 15 series, each series left out in turn"
    assert sum(model.calibration.right) < 40 and model.info.metrics["series"] == SCENES
    assert model.info.data.in_series == 60


def test_series_are_left_out_whole_beside_images_without_a_label_too(bursts):
    data, more = dataset(named=True), bursts.images.global_[::7] + 0.1
    config, options = ConjugateConfig(prior="none"), FitOptions(unlabelled=more)
    model = TunedModel.fit(data, bursts, Conjugate, config, options)
    model = calibrate_and_evaluate(model, data, bursts, unlabelled=more)
    assert len(model.calibration.single) == SCENES and sum(model.calibration.right) < 40


def test_photographs_that_may_be_of_a_series_are_told_unless_the_user_has_said(tiny_vit, monkeypatch):
    bank = GivenFeatures(tiny_vit, Encoded(torch.ones(60, tiny_vit.embed_dim), torch.ones(60, 1, 1)))
    data = dataset(named=False)
    for alike, told in ((30, 30), (10, 0)):
        monkeypatch.setattr(series, "_found", lambda *_, n=alike: Series(torch.arange(60), n))
        assert possible_series(data, data.train, bank, "") == told
    monkeypatch.setattr(series, "_found", lambda *_: Series(torch.arange(60), 60))
    assert possible_series(data, data.train, bank, "") == 60
    assert possible_series(data, data.train, bank, "none") == 0
    assert possible_series(dataset(named=True), dataset(named=True).train, bank, "") == 0
