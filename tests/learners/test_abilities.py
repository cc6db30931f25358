"""Abilities are asked for in one way: of a class, of a method, and where settings take one away."""

from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.learners.abilities import ChoosesByValidation, LearnsOn, can
from pbprompt.learners.method import build_method, make_config


def test_of_a_class_and_of_a_method(tiny_vit):
    assert can(Conjugate, LearnsOn) and not can(TipAdapter, LearnsOn)
    method = build_method(Conjugate, make_config(Conjugate), tiny_vit, seed=0)
    assert can(method, LearnsOn) and not can(method, ChoosesByValidation)


def test_settings_may_take_one_away(tiny_vit):
    assert can(TipAdapter, ChoosesByValidation)
    plain, searching = (
        build_method(TipAdapter, make_config(TipAdapter, preset), tiny_vit, seed=0)
        for preset in ("default", "published")
    )
    assert not can(plain, ChoosesByValidation) and can(searching, ChoosesByValidation)
