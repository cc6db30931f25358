"""Answers that cost least, where wrong ones do not cost the same."""

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.learners.predictive import Predictive
from pbprompt.model.costs import cheapest, checked_costs, matrix, read_costs
from pbprompt.model.rule import Rule

CLASSES = ("cat", "dog", "toad")


def answers(costs, *probabilities):
    shown = np.array(probabilities)
    return [name for name, _ in cheapest(shown, CLASSES, matrix(costs, CLASSES))]


def test_all_alike_is_the_likeliest():
    shown = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    found = cheapest(shown, CLASSES, matrix({}, CLASSES))
    assert [name for name, _ in found] == [CLASSES[at] for at in shown.argmax(1)]
    assert [score for _, score in found] == pytest.approx(shown.max(1).tolist())


def test_a_costly_confusion_is_avoided():
    # a toad taken for a cat costs 10: 0.1 · 10 > 0.6 · 1
    assert answers({("toad", "cat"): 10}, [0.6, 0.3, 0.1], [0.97, 0.01, 0.02]) == ["dog", "cat"]
    assert matrix({("toad", "cat"): 10}, CLASSES).tolist() == [[0, 1, 1], [1, 0, 1], [10, 1, 0]]


def test_unsure_is_chows_rule_and_a_threshold_for_each_class():
    shown = np.random.default_rng(1).dirichlet(np.ones(3) / 2, 300)
    found = answers({("*", "unsure"): 0.2}, *shown)
    assert found == [CLASSES[row.argmax()] if row.max() > 0.8 else "" for row in shown]
    costs = {("*", "unsure"): 0.2, ("*", "toad"): 4}  # from 0.8 on, toads from 0.95 on
    assert answers(costs, [0.85, 0.1, 0.05], [0, 0.1, 0.9], [0, 0.04, 0.96]) == ["cat", "", "toad"]


def test_the_rule_gives_it_as_the_answer():
    said = Predictive.of_logits(torch.tensor([[[0.0, 0.1, -9.0]]])).of_classes(CLASSES)
    losses = tuple(map(tuple, matrix({("dog", "cat"): 0.5}, CLASSES).tolist()))
    (one,) = Rule(costs=losses).decide(said, [False] * 3)
    assert one.label == "dog" and one.answer[0] == "cat" and one.to_dict()["answer"] == "cat"


def test_of_a_file(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("class,answer,cost\nToad,cat,10\n\n*,unsure,0.3\n")
    assert read_costs(file, CLASSES) == {("toad", "cat"): 10, ("*", "unsure"): 0.3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no costs in it"),
        ("toad,cat\n", "is no line `class,answer,cost`"),
        ("toad,cat,much\n", "'much' is no number"),
        ("frog,cat,2\n", "no class is called 'frog'"),
        ("unsure,cat,2\n", "no class is called 'unsure'"),
        ("cat,dog,-1\n", "give a number, 0 or more"),
        ("cat,dog,nan\n", "give a number, 0 or more"),
        ("cat,cat,2\n", "a right answer"),
    ],
)
def test_a_file_that_is_wrong_says_how(tmp_path, text, says):
    file = tmp_path / "costs.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_costs(file, CLASSES)


def test_names_as_the_classes_are_spelt():
    assert checked_costs({("CAT", "dog"): 2}, CLASSES, "costs") == {("cat", "dog"): 2}
