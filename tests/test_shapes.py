"""The shapes in signatures are checked while the tests run: a wrong one raises."""

import sys

import pytest
import torch
from jaxtyping import TypeCheckError
from shape_checks import UNCHECKED

from pbprompt.core.elbo import combined_elbo
from pbprompt.core.transport import patch_cosines


def test_a_wrong_shape_raises():
    one = torch.zeros(())
    assert combined_elbo(torch.zeros(4), kl=one).kl == 0
    with pytest.raises(TypeCheckError):
        combined_elbo(torch.zeros(4), kl=torch.zeros(7))


def test_two_arguments_must_agree_on_a_dimension():
    patches, prompts = torch.rand(2, 5, 8), torch.rand(3, 8)
    assert patch_cosines(patches, prompts).shape == (2, 5, 3)
    with pytest.raises(TypeCheckError):
        patch_cosines(patches, prompts[:, :7])


def test_every_module_is_checked():
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pbprompt"}
    unchecked = {
        name for name, module in loaded.items() if "jaxtyping" not in type(module.__loader__).__module__
    }
    assert {"pbprompt", "pbprompt.core.elbo", "pbprompt.clip.backbone"} <= set(loaded)
    assert unchecked <= {UNCHECKED}
