"""Every check can fail: methods with one defect each, and the check that finds it."""

from dataclasses import replace

import pytest
import torch

from pbprompt import registry
from pbprompt.errors import InputError
from pbprompt.evidence.rivals.nearest import ClassMeans, NearestMean
from pbprompt.learners.memory import Memory
from pbprompt.learners.zeroshot import ZeroShot
from pbprompt.prompts.rivals.coop import CoOp
from pbprompt.testing import behaviours, check_method, method_checks
from pbprompt.vision.towers.resnet import ModifiedResNet


class Nameless(ZeroShot):
    paper = ""


class Formless(ZeroShot):
    __module__ = __name__  # whose docstring has no formula


class Idle(ZeroShot, Memory):
    sample_logits = ZeroShot.sample_logits

    def fit(self, shown):
        return None


class Untrained(ZeroShot):
    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.weight = torch.nn.Parameter(torch.ones(1))


class Wasted(NearestMean):
    def fit(self, shown):
        made = super().fit(shown)
        return replace(made, means=made.means.roll(1, 0))


class Unseeded(ZeroShot):
    def class_features(self, samples, generator):
        features = super().class_features(samples, generator)
        return features + torch.rand_like(features)


class Melting(CoOp):
    def loss(self, batch, generator, examples):
        self.backbone.visual.proj.data.mul_(1.01)
        return super().loss(batch, generator, examples)


class Forgetful(NearestMean):
    def restored(self, tensors):
        return super().restored({"means": torch.ones_like(tensors["means"])})


class Onward(CoOp):
    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.register_buffer("steps", torch.zeros(()))

    def loss(self, batch, generator, examples):
        self.steps += 1
        return super().loss(batch, generator, examples)

    def class_features(self, samples, generator):
        features = super().class_features(samples, generator)
        return features + self.steps * torch.arange(features[0].numel()).view_as(features)


class Credulous(ZeroShot):
    takes_new_names = False


class Stubborn(ZeroShot):
    def prepare(self, classes, template):
        if self.classes and tuple(classes) != self.classes:
            raise InputError("keep the classes")
        super().prepare(classes, template)


class OnlyTransformers(ZeroShot):
    def prepare(self, classes, template):
        assert not isinstance(self.backbone.visual, ModifiedResNet), "no patches here"
        super().prepare(classes, template)


class ByName(NearestMean):
    def class_features(self, samples, generator):
        known = {name: label for label, name in enumerate(self.seen)}
        return self.fitted.means[[known[name] for name in self.classes]].unsqueeze(0)


class Balanced(NearestMean):
    def fit(self, shown):
        own = [shown.images.global_[shown.labels == c] for c in shown.labels.unique()]
        return ClassMeans(shown.asked, torch.stack(own).mean(1))


class Vague(NearestMean):
    def fit(self, shown):
        if len(shown.labels.unique()) < len(self.classes):
            raise InputError("too few images")
        return super().fit(shown)


class Unfinite(ZeroShot):
    def class_features(self, samples, generator):
        return super().class_features(samples, generator) * torch.nan


class Boastful(ZeroShot):
    def label_head(self, images, targets):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    registry.methods()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    yield
    behaviours.tiny_vit.cache_clear()  # one of the defects changes the towers


@pytest.mark.parametrize(
    ("kind", "check", "told"),
    [
        (Nameless, "says_what_it_is", "`paper` is empty"),
        (Formless, "says_what_it_is", "states no formula: write one with any of = ← ∝ ≈ in it"),
        (Untrained, "says_what_it_is", "derive it from"),
        (Idle, "learns", "nll .*, zero-shot"),
        (Wasted, "learns", "zero-shot"),
        (Unseeded, "is_a_function_of_its_seed", "two fits are .* apart"),
        (Melting, "is_a_function_of_its_seed", r"training changed \['visual.proj'\]"),
        (Forgetful, "saves_and_loads", "same to the last bit"),
        (Onward, "goes_back_to_its_start", "apart"),
        (Credulous, "takes_new_names_or_refuses", "it took them"),
        (Stubborn, "takes_new_names_or_refuses", "InputError: keep the classes"),
        (OnlyTransformers, "works_on_other_towers", "tiny-resnet, .*: no patches here"),
        (ByName, "keeps_classes_of_one_name_apart", "class 0 are not told from those of 2"),
        (Balanced, "takes_unbalanced_classes", "classes of 1, 2 and 9 images"),
        (Vague, "takes_a_class_without_images_or_names_it", "it says 'too few images'"),
        (Boastful, "is_multi_label_where_it_says_so", "NotImplementedError"),
        (Unfinite, "is_a_function_of_its_seed", "the answer is NaN"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_defect_is_found(kind, check, told):
    registry.register(f"broken-{kind.__name__}")(kind)
    with pytest.raises(AssertionError, match=f"method 'broken-{kind.__name__}' must .*{told}"):
        getattr(behaviours, check)(kind)


def test_a_method_without_defect_passes_by_name_and_by_class():
    check_method("zeroshot")
    check_method(ZeroShot, templates="ensemble")


def test_the_checks_have_names_to_show():
    names = [check.__name__ for check in method_checks()]
    assert len(names) == len(set(names)) > 9 and "learns" in names
