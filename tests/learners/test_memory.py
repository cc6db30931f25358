"""Which training images belong to which class: labels are the identity, names only find them again."""

import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.learners.method import Method, build_method
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded

NAMES = ("crane", "dog", "crane")  # a bird, a dog and a machine


def fitted(name: str, backbone) -> tuple[Method, Encoded]:
    kind = find_method(name)
    method = build_method(kind, kind.Config(), backbone, seed=1)
    method.prepare(NAMES, "a {}.")
    images = torch.randn(6, backbone.embed_dim, generator=torch.Generator().manual_seed(0))
    encoded = Encoded(images, images.unsqueeze(1))
    method.begin(encoded, torch.arange(6) % 3)
    return method, encoded


@pytest.mark.parametrize("name", ["nearest-mean", "tip-adapter"])
def test_two_classes_of_one_name_stay_two(name, tiny_vit):
    method, images = fitted(name, tiny_vit)
    assert method.labels_of_classes() == [0, 1, 2]
    said = predictive(method)(images).probabilities
    own, twin = said[[0, 2, 3, 5], [0, 2, 0, 2]], said[[0, 2, 3, 5], [2, 0, 2, 0]]
    assert (own > twin).all()


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (("dog", "crane", "crane"), [1, 0, 2]),
        (("crane", "owl", "dog"), [0, -1, 1]),
        (("crane",) * 3, [0, 2, -1]),
    ],
)
def test_other_classes_are_found_by_name(classes, labels, tiny_vit):
    method, _ = fitted("tip-adapter", tiny_vit)
    method.prepare(classes, "a {}.")
    assert method.labels_of_classes() == labels


def test_one_more_class_of_a_known_name_has_no_mean(tiny_vit):
    method, _ = fitted("nearest-mean", tiny_vit)
    with pytest.raises(InputError, match="'crane' is none of them"):
        method.prepare(("crane", "crane", "dog", "crane"), "a {}.")
    assert method.classes == NAMES
