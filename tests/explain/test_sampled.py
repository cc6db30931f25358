"""Class names as people write them."""

import pytest
import torch

from pbprompt.clip.backbone import Encoded
from pbprompt.errors import InputError
from pbprompt.explain.sampled import class_rows, missing_names, sampled_prompts
from pbprompt.methods.base import build_method, make_config
from pbprompt.registry import find_method

CLASSES = ("cat", "Fire_Engine", "sea horse")


def test_case_and_underscores_do_not_matter():
    assert class_rows(CLASSES, ["Sea_Horse", "fire  engine", "cat", "cat"]) == [2, 1, 0]
    assert missing_names(CLASSES, ["CAT", "zebra", "fire engine", "Zebra", "sofa"]) == ["zebra", "sofa"]


def test_an_unknown_name_is_named():
    with pytest.raises(InputError, match="'dog' is none of the model's 3"):
        class_rows(CLASSES, ["cat", "dog"])


def test_all_classes_of_a_name_are_found():
    assert class_rows(["crane", "dog", "Crane"], ["dog", "crane"]) == [1, 0, 2]


def fitted_conjugate(backbone, *settings):
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind, overrides=settings), backbone, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    images = torch.randn(12, backbone.embed_dim, generator=torch.Generator().manual_seed(0))
    method.begin(Encoded(images, images.unsqueeze(1)), torch.arange(12) % 3, seed=1)
    method.finish()
    return method


def test_a_name_that_is_read_once_is_one_prompt_however_many_classifiers_use_it(tiny_vit):
    method = fitted_conjugate(tiny_vit)
    assert len(method.class_features(2, torch.Generator())) > 1
    assert len(sampled_prompts(method, samples=2, seed=0)) == 1


def test_a_model_without_names_has_no_prompts_to_show(tiny_vit):
    with pytest.raises(InputError, match="conjugate was fitted without class names and has no prompts"):
        sampled_prompts(fitted_conjugate(tiny_vit, "prior=none"), samples=2, seed=0)
