"""Abilities are asked for in one way: of a class, of a method, and where settings take one away."""

from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.learners.abilities import LearnsOn, can
from pbprompt.learners.method import build_method, make_config


def test_of_a_class_and_of_a_method(tiny_vit):
    assert can(Conjugate, LearnsOn) and not can(TipAdapter, LearnsOn)
    method = build_method(Conjugate, make_config(Conjugate), tiny_vit, seed=0)
    assert can(method, LearnsOn)
