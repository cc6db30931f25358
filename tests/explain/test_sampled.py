"""Class names as people write them."""

import pytest

from pbprompt.errors import InputError
from pbprompt.explain.sampled import class_rows, missing_names

CLASSES = ("cat", "Fire_Engine", "sea horse")


def test_case_and_underscores_do_not_matter():
    assert class_rows(CLASSES, ["Sea_Horse", "fire  engine", "cat", "cat"]) == [2, 1, 0]
    assert missing_names(CLASSES, ["CAT", "zebra", "fire engine", "Zebra", "sofa"]) == ["zebra", "sofa"]


def test_an_unknown_name_is_named():
    with pytest.raises(InputError, match="'dog' is none of the model's 3"):
        class_rows(CLASSES, ["cat", "dog"])


def test_all_classes_of_a_name_are_found():
    assert class_rows(["crane", "dog", "Crane"], ["dog", "crane"]) == [1, 0, 2]
