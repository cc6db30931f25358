"""What every rival on frozen features takes: few images, many, none of a class, names twice, new names."""

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch
from pbprompt.learners.trained import Trained
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded

RIVALS = [find_method(name) for name in ("linear-probe", "gda", "proker", "lp++", "clap", "taskres")]
TEXT = [kind for kind in RIVALS if kind.takes_new_names]


@pytest.fixture(params=RIVALS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def clustered(frozen, labels, seed=3) -> Encoded:
    """Images that lie about their classes."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(max(labels) + 1, frozen.backbone.embed_dim, generator=generator)
    x = means[list(labels)] + 0.3 * torch.randn(len(labels), frozen.backbone.embed_dim, generator=generator)
    x = x.to(frozen.backbone.dtype)
    return Encoded(x, x.new_zeros(len(labels), 0, x.shape[1]))


def stepped(method, images, labels, steps=200):
    """A few hundred plain steps where the loop would train."""
    if not isinstance(method, Trained):
        return method
    optimiser = torch.optim.Adam(method.trainable(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        method.loss(Batch(images, torch.tensor(labels)), torch.Generator(), len(labels))["total"].backward()
        optimiser.step()
    return method


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1, 1, 1, 1, 2], [0, 1], [0, 0, 0, 1], [0, 1, 2], list(range(3)) * 50],
    ids=["unbalanced", "two images", "two classes", "one shot", "more images than dimensions"],
)
def test_training_images_are_told_apart(kind, frozen_tiny, labels):
    images = clustered(frozen_tiny, labels)
    settings = {"ridge": 1.0, "beta": 1.0} if kind.name == "proker" else {}
    settings |= {"constrained": False} if kind.name == "clap" else {}
    method = frozen_tiny.fit(kind, [f"thing {c}" for c in range(max(labels) + 1)], labels, images, **settings)
    logits = frozen_tiny.logits(stepped(method, images, labels), images)
    assert np.isfinite(logits).all()
    if kind.name not in ("proker", "gda"):  # these keep to the text as far as their settings say
        assert logits.argmax(1).tolist() == labels


def test_a_class_without_images(kind, frozen):
    names = ("cat", "moon", "golden_retriever", "x")
    shifted = [label + (label > 0) for label in frozen.labels]
    found = frozen.logits(frozen.fit(kind, names, shifted))
    assert np.isfinite(found).all()
    without = frozen.fit(kind)
    if kind.takes_new_names:
        without.prepare(names, frozen.template)
        np.testing.assert_allclose(found, frozen.logits(without), rtol=1e-6, atol=1e-6)
    else:
        assert (torch.tensor(found).softmax(-1)[:, 1] == 0).all()
        np.testing.assert_allclose(found[:, [0, 2, 3]], frozen.logits(without), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", TEXT, ids=lambda kind: kind.name)
def test_new_names_alone_are_ranked_by_their_sentences(kind, frozen):
    method = frozen.fit(kind)
    names = ("dog", "tree", "moon")
    method.prepare(names, frozen.template)
    found = frozen.logits(method)
    text = np.stack([frozen.sentence(name) for name in names])
    cosines = frozen.z @ (text / np.linalg.norm(text, axis=1, keepdims=True)).T
    assert (found.argsort(1) == cosines.argsort(1)).all()
    steps = np.diff(found, axis=1) / np.diff(cosines, axis=1)
    np.testing.assert_allclose(steps, np.full_like(steps, steps[0, 0]), rtol=1e-6)


def test_a_name_that_occurs_twice_is_two_classes(kind, frozen):
    names = ("crane", "x", "crane")
    apart = frozen.fit(kind, ("crane", "x", "crane"))
    found = frozen.logits(apart)
    if not isinstance(apart, Trained):
        assert not np.allclose(found[:, 0], found[:, 2])
    apart.prepare(("x", "crane", "crane"), frozen.template)
    np.testing.assert_allclose(frozen.logits(apart), found[:, [1, 0, 2]])
    apart.prepare(names, frozen.template)
    np.testing.assert_allclose(frozen.logits(apart), found)


def test_model_folder(kind, frozen_tiny, tmp_path):
    method = stepped(frozen_tiny.fit(kind), frozen_tiny.images, frozen_tiny.labels, steps=3)
    TunedModel(method, describe_model(method, shots=2)).save(tmp_path / "m")
    loaded = TunedModel.load(tmp_path / "m", frozen_tiny.backbone).method
    orders = [frozen_tiny.names, ("x", "cat"), *([("x", "dog")] if kind.takes_new_names else [])]
    for names in orders:
        said = []
        for one in (method, loaded):
            one.prepare(names, frozen_tiny.template)
            said.append(predictive(one)(frozen_tiny.others).probabilities)
        assert torch.equal(*said)


def test_unfitted_says_so(kind, frozen_tiny):
    from pbprompt.learners.method import build_method

    method = build_method(kind, kind.Config(), frozen_tiny.backbone, seed=0)
    method.prepare(frozen_tiny.names, frozen_tiny.template)
    with pytest.raises(InputError, match="fit it on images first"):
        predictive(method)
