"""The default model, fitted: a frozen `Fitted` that functions of its evidence make."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.fitted import FittedEvidence, fit_evidence
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.learners.fitted import Explains, Familiar, Fitted, LeavesOut
from pbprompt.learners.method import build_method
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

NAMES, WIDTH = ("cat", "dog", "elk"), 16
TEXTS = unit(torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0)))
SIGHT = Sight((WIDTH,), (20.0,), lambda names: TEXTS[[(*NAMES, "owl", "hen").index(name) for name in names]])


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(3 * count) % 3
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    return unit(TEXTS[labels] + 0.3 * noise), labels


def seen(images: torch.Tensor) -> Encoded:
    return Encoded(images, images[:, None])


def fitted(count: int = 8, **more) -> FittedEvidence:
    images, labels = drawn(count, 1)
    return fit_evidence(Shown.nothing(WIDTH).with_more(images, labels, NAMES), SIGHT, **more)


def test_it_is_a_frozen_fitted_that_can_more():
    model = fitted()
    for protocol in (Fitted, LeavesOut, Familiar):
        assert isinstance(model, protocol)
    assert isinstance(model, Explains)
    with pytest.raises(FrozenInstanceError):
        model.classes = ()


def test_other_classes_are_another_model():
    model, (new, labels) = fitted(), drawn(20, 2)
    said = model.predict(seen(new))
    assert said.classes == NAMES and (said.probabilities.argmax(1) == labels).double().mean() > 0.8
    turned = model.for_classes(NAMES[::-1]).predict(seen(new))
    torch.testing.assert_close(turned.probabilities, said.probabilities.flip(1))
    beside = model.for_classes((*NAMES, "owl")).predict(seen(new))
    assert beside.probabilities.shape == (60, 4) and model.classes == NAMES
    torch.testing.assert_close(beside.familiarity, said.familiarity)


@pytest.mark.parametrize("pool", [0, 60])
def test_its_tensors_are_all_of_it(pool):
    others, _ = drawn(pool // 3, 3)
    model, new = fitted(2, pool=others).rounded(), seen(drawn(20, 2)[0])
    again = FittedEvidence.from_tensors(model.tensors(), NAMES, SIGHT, NAMES)
    assert torch.equal(again.predict(new).probabilities, model.predict(new).probabilities)
    for mine, theirs in zip(again.left_out()[:2], model.left_out()[:2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="not of 2 classes and 16 dimensions"):
        FittedEvidence.from_tensors(model.tensors(), NAMES[:2], SIGHT, NAMES)


def test_more_photographs_are_another_fit():
    images, labels = drawn(8, 1)
    few = Shown.nothing(WIDTH).with_more(images[:10], labels[:10], NAMES)
    more = few.with_more(images[10:], labels[10:], NAMES)
    new = seen(drawn(20, 2)[0])
    found, wanted = fit_evidence(more, SIGHT).predict(new), fitted().predict(new)
    torch.testing.assert_close(found.probabilities, wanted.probabilities, rtol=1e-4, atol=1e-6)
    assert few.evidence.statistics.counts.sum() == 10  # as it was
    joined = more.regrouped({"elk": "dog"})
    assert joined.names == ("cat", "dog") and joined.evidence.statistics.counts.tolist() == [8, 16]


def test_series_go_on_behind_those_of_before():
    images, labels = drawn(2, 1)
    shown = Shown.nothing(WIDTH).with_more(images, labels, NAMES, groups=torch.tensor([0, 1, 2, 0, 1, 2]))
    more = shown.with_more(images + 0.1, labels, NAMES)
    assert more.groups.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    alone = Shown.nothing(WIDTH).with_more(images, labels, NAMES)
    assert alone.with_more(images + 0.1, labels, NAMES, groups=torch.zeros(6).long()).groups.tolist() == [
        *range(6),
        *[6] * 6,
    ]


def test_too_few_to_fit_names_to_are_refused():
    none = Shown.nothing(WIDTH, names=NAMES)
    with pytest.raises(InputError, match="5 images without labels are too few for 3 classes"):
        fit_evidence(none, SIGHT, pool=drawn(2, 3)[0][:5])
    assert fit_evidence(none, SIGHT, pool=drawn(20, 3)[0]).absorbed.weight > 0


@pytest.mark.parametrize("broken", ["counts", "kept", "pool", "fitted_weights_log"])
def test_damaged_tensors_are_refused_by_the_door(tiny_vit, broken):
    method = build_method(Conjugate, ConjugateConfig(prior="none"), tiny_vit, seed=0)
    method.prepare(NAMES, "{}")
    images = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    method.begin(seen(images), torch.arange(12) % 3)
    state = method.state_dict()
    for damage in ({**state, broken: torch.zeros(2, 5)}, {k: v for k, v in state.items() if k != broken}):
        if broken.startswith("fitted") and len(damage) == len(state):
            continue  # of the posterior's tensors the shapes are its own affair
        with pytest.raises(RuntimeError, match=r"Error.s. in loading state_dict for Conjugate"):
            method.load_state_dict(damage)


def test_held_out_photographs_are_those_of_the_fit():
    model = fitted()
    loaded = replace(model, left=None)
    torch.testing.assert_close(loaded.held_out.looks, model.held_out.looks)
    assert model.for_classes(NAMES[:2]).held_out is model.held_out
