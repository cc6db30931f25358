"""What people say of classes: the file, and what becomes of it."""

import pytest

from pbprompt.errors import InputError
from pbprompt.vision.images.names import described, read_descriptions


def test_sentences_and_lists_of_them(tmp_path):
    file = tmp_path / "classes.yaml"
    file.write_text("SKU-4711: a red can\nSKU 2:\n  - a blue  box\n  - a carton\n7: seven\n")
    told = read_descriptions(file)
    assert told == {"SKU-4711": ["a red can"], "SKU 2": ["a blue box", "a carton"], "7": ["seven"]}
    assert described(["sku-4711", "SKU 2", "7"], told, "x")[1] == ("SKU 2", "a blue box", "a carton")
    assert described(["cat"], {"Cat": "small"}, "x") == (("cat", "small"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "no YAML"), ("- a", "no descriptions"), ("", "no descriptions"), ("a: 3", "class 'a': give a")],
)
def test_what_is_wrong_is_said(tmp_path, text, says):
    (tmp_path / "classes.yaml").write_text(text)
    with pytest.raises(InputError, match=says):
        read_descriptions(tmp_path / "classes.yaml")


def test_a_class_that_is_not_there():
    with pytest.raises(InputError, match="no class is called 'caat': did you mean 'cat'"):
        described(["cat", "dog"], {"caat": "x"}, "classes.yaml")
