"""What only some can do: asked of a class and of a method, and satisfied by having the functions."""

import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.learners import MultiLabel, Streams, TakesUnlabelled
from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.evidence.tower_evidence import TowerEvidence
from pbprompt.learners.fitted import (
    Explains,
    Familiar,
    Fitted,
    LeavesOut,
    PartialFit,
    ReadsNames,
    ShowsTokens,
)
from pbprompt.learners.method import build_method, make_config
from pbprompt.prompts.pbprompt import PBPrompt
from pbprompt.registry import methods
from pbprompt.testing.fits import fitted

OF_WHAT_IS_FITTED = (Explains, Familiar, LeavesOut, ReadsNames)
OF_A_METHOD = (MultiLabel, PartialFit, Streams)


def test_of_a_class_and_of_a_method(tiny_vit):
    assert all(issubclass(Conjugate.makes, one) for one in OF_WHAT_IS_FITTED)
    assert all(issubclass(Conjugate, one) for one in OF_A_METHOD) and not issubclass(Conjugate, ShowsTokens)
    assert not any(issubclass(TipAdapter.makes, one) for one in OF_WHAT_IS_FITTED)
    assert not any(issubclass(TipAdapter, one) for one in (*OF_A_METHOD, ShowsTokens))
    every = (*OF_WHAT_IS_FITTED, *OF_A_METHOD)
    assert [one for one in every if issubclass(TowerEvidence, one)] == [Familiar, ReadsNames]
    method = build_method(Conjugate, make_config(Conjugate), tiny_vit, seed=0)
    assert method.fitted is None and isinstance(method, TakesUnlabelled)
    assert isinstance(fitted(Conjugate, {}, tiny_vit).fitted, Fitted)
    assert issubclass(PBPrompt, ShowsTokens) and not issubclass(PBPrompt, Explains)


def test_whoever_has_the_functions_can(tiny_vit):
    class Own(TipAdapter):
        def left_out(self):
            return None

    assert isinstance(build_method(Own, make_config(Own), tiny_vit, seed=0), LeavesOut)


@pytest.mark.parametrize("name", methods())
def test_prompts_are_features_of_the_classes_or_refused(name, tiny_vit):
    """Whatever a bank holds."""
    method = fitted(methods()[name], {}, tiny_vit, steps=1)
    bank = method.class_features(2, torch.Generator().manual_seed(0))
    try:
        prompts = method.prompts_of(bank)
    except InputError as error:
        assert "has no class features to look into" in str(error)
    else:
        assert prompts.shape[1:] == (len(method.classes), tiny_vit.embed_dim)
