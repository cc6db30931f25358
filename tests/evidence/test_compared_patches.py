"""`conjugate` with the setting `patches`: parts of photographs as an expert beside the others."""

import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method
from pbprompt.model.fitting import check_streams
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

NAMES = ("wren", "robin", "finch")


def images(backbone, labels, seed=0):
    """Alike as wholes; one patch in six is the class's own."""
    chance = torch.Generator().manual_seed(seed)
    width = backbone.embed_dim
    own = torch.randn(len(NAMES), width, generator=torch.Generator().manual_seed(9))
    patches = torch.randn(len(labels), 6, width, generator=chance)
    patches[:, 0] = 2 * own[labels] + 0.3 * patches[:, 0]
    return Encoded(torch.randn(len(labels), width, generator=chance), patches.half())


def fit(backbone, labels, groups=None, **settings):
    settings = {"patches": True, "prior": "none", **settings}
    method = build_method(Conjugate, ConjugateConfig(**settings), backbone, 0)
    method.prepare(NAMES, "a photo of a {}.")
    method.begin(images(backbone, labels), labels, groups=groups)
    return method


def ask(method, seen):
    return predictive(method)(seen).probabilities


def right(method, backbone):
    labels = torch.arange(30) % 3
    said = ask(method, images(backbone, labels, seed=4))
    return float((said.argmax(1) == labels).double().mean())


def test_classes_that_differ_by_a_part(tiny_vit):
    labels = torch.arange(24) % 3
    assert right(fit(tiny_vit, labels), tiny_vit) > 0.9
    assert right(fit(tiny_vit, labels, patches=False), tiny_vit) < 0.6


@pytest.mark.parametrize("counts", [(4, 4, 4), (1, 1, 1), (5, 1, 2), (3, 2, 0), (4, 0, 0)])
def test_saved_and_loaded(tiny_vit, tmp_path, counts):
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    method = fit(tiny_vit, labels, prior="sentence")
    TunedModel(method, describe_model(method)).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model", tiny_vit).method
    seen = images(tiny_vit, torch.arange(6) % 3, seed=2)
    said = ask(method, seen)
    assert said.isfinite().all()
    assert torch.equal(ask(loaded, seen), said)
    if (left := method.fitted.left_out()) is not None:
        torch.testing.assert_close(loaded.fitted.left_out()[0], left[0], rtol=1e-4, atol=1e-5)


def test_what_it_says_is_told_and_sums_up(tiny_vit):
    method = fit(tiny_vit, torch.arange(24) % 3, prior="sentence")
    seen = images(tiny_vit, torch.arange(6) % 3, seed=2)
    parts = method.fitted.sources(seen)
    made, weight = method.fitted.shown.patches, method.fitted.posterior.weights.best[4]
    torch.testing.assert_close(parts["patches"], weight * made.spoken_for(seen.patches).sum(1))
    assert method.directions(method.class_features(1, torch.Generator())).isfinite().all()


def test_series_are_held_out_whole(tiny_vit):
    """Each photograph of a class with its copy: the copy is no witness for it."""
    labels = torch.arange(12) % 3
    twice, groups = torch.cat([labels, labels]), torch.arange(12).repeat(2)
    seen = images(tiny_vit, labels)
    copies = Encoded(*(torch.cat([part, part]) for part in seen))
    found = []
    for given in (groups, None):
        method = build_method(Conjugate, ConjugateConfig(patches=True, prior="none"), tiny_vit, 0)
        method.prepare(NAMES, "{}")
        method.begin(copies, twice, groups=given)
        made = method.fitted.shown.patches
        own = made.spread * made.held_out.float().gather(1, twice.unsqueeze(1))
        found.append(float(own.mean()))
        assert method.fitted.left_out() is not None
    assert found[0] < found[1]


def test_a_renamed_class_keeps_its_patches_and_a_new_name_has_none(tiny_vit):
    method = fit(tiny_vit, torch.arange(12) % 3, prior="sentence")
    seen = images(tiny_vit, torch.arange(6) % 3, seed=2)
    method.prepare((*NAMES, "heron"), "a photo of a {}.")
    assert (method.fitted.sources(seen)["patches"][:, 3] == 0).all()
    before = method.fitted.shown.patches
    method.regroup({"finch": "siskin"})
    assert torch.equal(method.fitted.shown.patches.prototypes, before.prototypes)
    with pytest.raises(InputError, match="neither joins nor forgets"):
        method.regroup({"siskin": "wren"})


def test_where_patches_take_no_part(tiny_vit):
    labels = torch.arange(12) % 3
    method = fit(tiny_vit, labels)
    more = images(tiny_vit, labels, seed=3)
    with pytest.raises(InputError, match="fit it again on all"):
        method.learn(more, labels)
    with pytest.raises(InputError, match="without a label"):
        method.add_unlabelled(unit(more.global_))
    with pytest.raises(InputError, match="one label of each image"):
        method.label_head(more, torch.eye(3)[labels])
    with pytest.raises(InputError, match="have 1 each"):
        ask(method, Encoded(more.global_, more.global_.unsqueeze(1)))
    with pytest.raises(InputError, match="all its training images at once"):
        check_streams(Conjugate, ConjugateConfig(patches=True), tiny_vit)
