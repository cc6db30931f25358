"""Groups of classes, and answers that are as precise as they are sure."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.learners.predictive import Predictive
from pbprompt.model.calibration import Calibration
from pbprompt.model.decisions import Rule
from pbprompt.model.hierarchy import backed_off, holds, levels, read_hierarchy

CLASSES = ("siamese", "persian", "boxer", "pug", "parrot")
PAIRS = (
    ("siamese", "cat"),
    ("persian", "cat"),
    ("boxer", "dog"),
    ("pug", "dog"),
    ("cat", "pet"),
    ("dog", "pet"),
)


def test_levels_are_groups_of_several_classes_but_not_of_all():
    narrow, wide = levels((*PAIRS, ("pet", "animal"), ("parrot", "animal")), CLASSES)
    assert narrow.names == ("cat", "dog") and wide.names == ("pet",)
    assert narrow.members.T.tolist() == [[True, True, False, False, False], [False, False, True, True, False]]
    assert wide.members.T.tolist() == [[True] * 4 + [False]]
    assert levels((("parrot", "bird"),), CLASSES) == ()  # it holds one class
    assert levels(tuple((name, "all") for name in CLASSES), CLASSES) == ()


def test_the_narrowest_that_is_sure_enough():
    p = np.array([[0.9, 0.1, 0, 0, 0], [0.5, 0.4, 0.1, 0, 0], [0.3, 0.3, 0.3, 0.1, 0], [0.2] * 5])
    found = backed_off(p, CLASSES, (0.8, 0.85, 0.99), PAIRS).tolist()
    assert found == [("siamese", 0.9), ("cat", 0.9), ("pet", 1.0), ("", 0.0)]
    said = Predictive.of_logits(torch.tensor(p).clamp_min(1e-12).log()[None]).of_classes(CLASSES)
    rows = Rule(back_off=(0.8, 0.85, 0.99), hierarchy=PAIRS).decide(said, [False] * 5)[1:]
    assert [one.answer for one in rows] == found[1:]
    shown = [one.to_dict() for one in rows.numpy()]
    assert [one["answer"] for one in shown] == ["cat", "pet", None] and shown[0]["answer_score"] == 0.9
    assert "answer" not in said[0].to_dict()


def test_a_file_of_groups(tmp_path):
    file = tmp_path / "kinds.csv"
    file.write_text("Siamese,cat\npersian,cat\nboxer,dog\npug,dog\ncat,pet\ndog,pet\n")
    assert tuple(read_hierarchy(file, CLASSES).items()) == PAIRS
    for text, says in (
        ("siamis,cat\npersian,cat\n", "no class is called 'siamis'"),
        ("siamese,pug\npersian,pug\n", "'pug' is a class, to which 'siamese' cannot belong"),
        ("siamese,cat\npersian,cat\ncat,pet\npet,cat\n", "belongs to itself"),
        ("siamese,cat\npug,dog\n", "no group holds several classes, but not all"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            read_hierarchy(file, CLASSES)


def drawn(random: np.random.Generator, n: int) -> Calibration:
    """Answers right as often as they say, of the class and of its group."""
    group = random.uniform(0.9, 1, n)
    best = group * random.uniform(0.1, 1, n) ** 0.4
    in_group = random.random(n) < group
    right = in_group & (random.random(n) < best / group)
    return Calibration(
        tuple(best), tuple(right.tolist()), tuple(np.where(right, best, 0.0)), 5, 5, 1, 0, ("pug",) * n,
        group_confidence=tuple(zip(group)), group_right=tuple(zip(in_group.tolist())),
    )  # fmt: skip


def test_each_level_keeps_what_is_promised():
    random, new, broken, both = np.random.default_rng(2), drawn(np.random.default_rng(3), 20_000), 0, 0
    for _ in range(60):
        classes, groups = new.answered(drawn(random, 800).back_off(0.9))
        broken += any(one.images and one.right / one.images < 0.9 for one in (classes, groups))
        both += bool(classes.images and groups.images)
    assert broken <= 6 and both > 20


def test_groups_follow_their_images():
    random = np.random.default_rng(4)
    one, other = drawn(random, 30), drawn(random, 20)
    both = one.joined(other)
    assert both.group_confidence == one.group_confidence + other.group_confidence
    series = replace(both, groups=(0, *range(len(both) - 1)))
    assert len(series.single.group_right) == len(both) - 1
    with pytest.raises(InputError, match="fit it with --hierarchy FILE"):
        replace(one, group_confidence=(), group_right=()).back_off(0.9)


def test_a_group_holds_what_belongs_to_it():
    pairs = (("siamese", "cat"), ("cat", "pet"), ("pug", "dog"))
    assert (
        holds("siamese", "siamese", pairs) and holds("pet", "siamese", pairs) and holds("toad", "toad", pairs)
    )
    assert not holds("dog", "siamese", pairs) and not holds("siamese", "cat", pairs)


def test_no_group_of_a_level_holds_another():
    pairs = (("siamese", "cat"), ("bengal", "cat"), ("cat", "pet"), ("budgie", "pet"))
    narrow, wide = levels(pairs, ("siamese", "bengal", "budgie", "oak"))
    assert narrow.names == ("cat",) and wide.names == ("pet",)
    assert narrow.members[:, 0].tolist() == [True, True, False, False]
