"""The shapes in signatures are checked while the tests run: a wrong one raises."""

import sys
from types import FunctionType

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from shape_checks import UNCHECKED, has_shape, once_a_shape, shapes_only
from torch import Tensor

from pbprompt.prompts.pbprompt.elbo import combined_elbo
from pbprompt.prompts.pbprompt.transport import patch_cosines


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


def test_what_was_checked_is_checked_again_for_other_shapes_and_results():
    results = iter([torch.zeros(2), torch.zeros(2), torch.zeros(3), [torch.zeros(2)]])

    def drawn(like: Float[Tensor, " n"], *, other: Float[Tensor, " n"] | None = None) -> Float[Tensor, " n"]:
        return next(results)

    checked = once_a_shape(drawn, shapes_only)
    two = torch.zeros(2)
    for _ in range(2):
        assert len(checked(two)) == 2
    for arguments, named in [((two,), {"other": torch.zeros(3)}), ((two.long(),), {}), (([two],), {})]:
        with pytest.raises(TypeCheckError):
            checked(*arguments, **named)
    for _ in range(2):  # what it says now has another length, then another type
        with pytest.raises(TypeCheckError):
            checked(two)
    assert next(results, None) is None


def test_every_module_is_checked():
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "pbprompt"}
    unchecked = {
        name for name, module in loaded.items() if "jaxtyping" not in type(module.__loader__).__module__
    }
    assert {"pbprompt", "pbprompt.prompts.pbprompt.elbo", "pbprompt.vision.towers.backbone"} <= set(loaded)
    assert all(name.startswith(UNCHECKED) for name in unchecked), unchecked


def is_checked(function) -> bool:
    """Here or inside another decorator, such as torch.no_grad."""
    inner = getattr(function, "__wrapped__", None)
    return "jaxtyping" in function.__code__.co_filename or (inner is not None and is_checked(inner))


def test_every_signature_with_a_shape_is_checked():
    found = {True: 0, False: 0}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "pbprompt" and not name.startswith(UNCHECKED):
            kinds = [module, *(kind for kind in vars(module).values() if isinstance(kind, type))]
            for function in (value for kind in kinds for value in vars(kind).values()):
                if isinstance(function, FunctionType) and function.__module__ == name:
                    shaped = any(map(has_shape, function.__annotations__.values()))
                    found[shaped] += 1
                    assert not shaped or is_checked(function), f"{name}.{function.__qualname__}"
    assert min(found.values()) > 50
