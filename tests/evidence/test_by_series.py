"""Photographs held out with their series: as if experts were fitted without it, and saved with the model."""

import pytest
import torch

from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.expert import SERIES_FOLDS, HeldOutPhotographs, Photographs, Seen, held_out_by_series
from pbprompt.evidence.experts import EXPERTS
from pbprompt.evidence.series import series_folds
from pbprompt.learners.method import build_method
from pbprompt.model.calibration import calibrate_left_out
from pbprompt.model.predictor import predictive
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

CLASSES, SERIES, TWINS, WIDTH = 3, 6, 3, 16
KINDS = [kind for kind in EXPERTS.values() if not kind.from_patches]


def bursts(seed=0, width=WIDTH, spread=0.9):
    chance = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, 1, 1, width, generator=chance)
    scenes = means + spread * torch.randn(CLASSES, SERIES, 1, width, generator=chance)
    shots = scenes + 0.05 * torch.randn(CLASSES, SERIES, TWINS, width, generator=chance)
    labels = torch.arange(CLASSES).repeat_interleave(SERIES * TWINS)
    return unit(shots.reshape(-1, width)), labels, torch.arange(CLASSES * SERIES).repeat_interleave(TWINS)


def photographs(images, labels):
    texts = unit(torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1)))
    return Photographs.of(*Evidence.of(images, labels, CLASSES), texts, 10.0)


def test_every_fold_is_as_if_fitted_without_it():
    images, labels, groups = bursts()
    seen = photographs(images, labels)
    held = [kind.fit(seen)[1] for kind in KINDS]
    left = HeldOutPhotographs.of(seen, held)
    found = held_out_by_series([seen], [KINDS], left, groups)
    assert found.several.all()
    rows = series_folds(labels, groups, SERIES_FOLDS)[1]
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[rows] = False
    fresh = photographs(images[rest], labels[rest])
    for place, kind in enumerate(KINDS):
        expected = kind.fit(fresh)[0].scores(Seen(images[rows].double()))
        torch.testing.assert_close(found.scores[place, rows], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(seen.without(rows).statistics.moment, fresh.statistics.moment)
    assert found.without_class is left.without_class


def fitted(backbone, images, labels, groups):
    method = build_method(Conjugate, ConjugateConfig(prior="none"), backbone, seed=0)
    method.prepare([f"class {place}" for place in range(CLASSES)], "{}")
    method.begin(Encoded(images, images.unsqueeze(1)), labels, groups=groups)
    return method


def test_bursts_promise_no_more_than_their_series(tiny_vit):
    """Judged one by one each photograph is told by its twins; by series it is told as new photographs are."""
    images, labels, groups = bursts(width=tiny_vit.embed_dim, spread=3)
    by_one = calibrate_left_out(predictive(fitted(tiny_vit, images, labels, None)))
    method = fitted(tiny_vit, images, labels, groups)
    by_series = calibrate_left_out(predictive(method))
    assert len(by_series.single) == CLASSES * SERIES and by_series.left_out == len(labels)
    assert sum(by_one.right) == len(labels) > sum(by_series.right)
    again = build_method(Conjugate, ConjugateConfig(prior="none"), tiny_vit, seed=0)
    again.remember(method.classes)
    again.load_state_dict(method.state_dict())
    again.prepare(method.classes, "{}")
    assert calibrate_left_out(predictive(again)) == by_series
    old = {name: value for name, value in method.state_dict().items() if name != "kept_groups"}
    again.load_state_dict(old)
    assert again.fitted.left_out().groups is None


def test_series_last_through_learning_and_regrouping(tiny_vit):
    images, labels, groups = bursts(width=tiny_vit.embed_dim)
    method = fitted(tiny_vit, images, labels, groups)
    method.learn(Encoded(images[:2], images[:2].unsqueeze(1)), labels[:2])
    assert method.fitted.shown.groups.tolist() == [*groups.tolist(), 18, 19]
    method.regroup({"class 0": None})
    assert method.fitted.shown.groups.tolist() == groups[SERIES * TWINS :].tolist()
    method.prepare(("class 1", "class 2"), "{}")
    assert set(method.fitted.left_out().groups.tolist()) == set(range(SERIES, 3 * SERIES))


def test_each_by_itself_changes_nothing(tiny_vit):
    images, labels, _ = bursts(width=tiny_vit.embed_dim)
    states = [fitted(tiny_vit, images, labels, None).state_dict() for _ in range(2)]
    assert "kept_groups" not in states[0]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert fitted(tiny_vit, images, labels, None).fitted.left_out().groups is None


@pytest.mark.parametrize("series", [1, 2])
def test_a_class_of_a_single_series_is_not_judged(tiny_vit, series):
    images, labels, groups = bursts(width=tiny_vit.embed_dim)
    groups[labels == 2] = 15 + torch.arange(SERIES * TWINS) % series
    left = calibrate_left_out(predictive(fitted(tiny_vit, images, labels, groups)))
    assert ("class 2" in left.labels) == (series > 1)
