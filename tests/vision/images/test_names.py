"""Readable class names, and the files that give them."""

import copy
import html
import json
import pickle
import unicodedata

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.names import (
    ClassLabel,
    by_any_name,
    called,
    check_distinct,
    class_rows,
    from_folder,
    from_label,
    known_as,
    mended,
    missing_names,
    name_key,
    read_classes_file,
    read_name,
)
from pbprompt.vision.towers.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("golden_retriever", "golden retriever"),
        ("Granny-Smith", "Granny Smith"),
        ("AnnualCrop", "Annual Crop"),
        ("BoxingSpeedBag", "Boxing Speed Bag"),
        ("iPhone", "iPhone"),
        ("McDonald", "McDonald"),
        ("USA", "USA"),
        ("__car__side_", "car side"),
        ("électro_ménager", "électro ménager"),
        ("737-800", "737 800"),
    ],
)
def test_folder_names(folder, name):
    assert from_folder(folder) == name


def test_labels_keep_hyphens_and_capitals():
    assert from_label("hard-leaved_pocket orchid") == "hard-leaved pocket orchid"
    assert from_label(" McLaren  MP4-12C ") == "McLaren MP4-12C"


NAMES = {"n01": "tench", "b_2": "a: b, c", "日": "sun"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("names.json", json.dumps(NAMES)),
        ("names.csv", '\ufeffn01,tench\r\nb_2,"a: b, c"\r\n\r\n日,sun\r\n'),
        ("names.tsv", "n01\ttench\nb_2\ta: b, c\n日\tsun"),
        ("names.txt", "# wnid: name\nn01: tench\n\nb_2: a: b, c\n日: sun\n"),
    ],
)
def test_classes_file(tmp_path, file, text):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8", newline="")
    assert read_classes_file(path) == NAMES


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("n.json", "{", "not JSON"),
        ("n.json", "[]", "not a JSON object"),
        ("n.json", '{"a": 3}', "not a JSON object"),
        ("n.csv", "a,b,c\n", "line 1: 3 columns"),
        ("n.csv", 'a,b\nc,"d\n', "quotes"),
        ("n.txt", "a: b\nc d\n", "line 2: no ':'"),
        ("n.txt", "a: b\na: c\n", "named twice"),
        ("n.txt", "a:\n", "empty"),
        ("n.txt", "\n", "no class names"),
    ],
)
def test_bad_classes_files(tmp_path, file, text, why):
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=why) as caught:
        read_classes_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([".json", ".csv", ".tsv", ".txt"]), st.text())
def test_any_text_is_read_or_refused(tmp_path_factory, suffix, text):
    path = tmp_path_factory.mktemp("names") / f"names{suffix}"
    path.write_bytes(text.encode("utf-8", "replace"))
    try:
        mapping = read_classes_file(path)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert mapping and all(key.strip() and name.strip() for key, name in mapping.items())


def test_mapping_is_laid_over_and_unknown_keys_are_refused():
    found = Choices(mapping={"b": "bee"}).names(["a", "b"], "f", str.upper)
    assert found == ("a", "b") and [*map(read_name, found)] == ["A", "bee"]
    with pytest.raises(InputError, match="did you mean 'apples'"):
        Choices(mapping={"aples": "x"}).names(["apples", "b"], "f")


def test_equal_names_are_refused():
    check_distinct(["a_b", "c"], ["a b", "c"], "f")
    with pytest.raises(InputError, match="'a_b' and 'A-b'"):
        check_distinct(["a_b", "A-b"], ["a b", "A b"], "f")
    with pytest.raises(InputError, match="no readable name"):
        check_distinct(["_"], [""], "f")


def test_one_class_may_be_spelt_in_several_ways():
    assert name_key("Red_car") == name_key(" red  car") != name_key("redcar")


@pytest.mark.parametrize("other", ["ｂｉｒｄ", "b&#105;rd", "b&amp;#105;rd", "BIRD"])
def test_names_of_the_same_tokens_are_one(other):
    assert Tokenizer().encode(other) == Tokenizer().encode("bird") and name_key(other) == name_key("bird")
    with pytest.raises(InputError, match="both named"):
        check_distinct(["a", "b"], ["bird", other], "f")


def test_accents_in_one_or_two_characters_are_one_name():
    assert name_key(unicodedata.normalize("NFD", "crème")) == name_key(unicodedata.normalize("NFC", "Crème"))


SPELLED = ("cat", "Fire_Engine", "sea horse")


def test_case_and_underscores_do_not_matter():
    assert class_rows(SPELLED, ["Sea_Horse", "fire  engine", "cat", "cat"]) == [2, 1, 0]
    assert missing_names(SPELLED, ["CAT", "zebra", "fire engine", "Zebra", "sofa"]) == ["zebra", "sofa"]


def test_an_unknown_name_is_named():
    with pytest.raises(InputError, match="'dog' is none of the model's 3"):
        class_rows(SPELLED, ["cat", "dog"])


def test_all_classes_of_a_name_are_found():
    assert class_rows(["crane", "dog", "Crane"], ["dog", "crane"]) == [1, 0, 2]


KINDS = (ClassLabel("SKU-17", "red can"), ClassLabel("sku_17", "blue can"), "cat", "Crane", "crane")


def test_a_class_is_found_by_its_label_before_its_name():
    rows = by_any_name(KINDS)
    found = {name: called(rows, name) for name in ("SKU-17", "sku_17", "Red_Can", "blue can", "CAT", "dog")}
    assert found == {"SKU-17": [0], "sku_17": [1], "Red_Can": [0], "blue can": [1], "CAT": [2], "dog": []}
    assert called(rows, "crane") == called(rows, "CRANE") == [3, 4]  # both of a name
    swapped = (ClassLabel("cat", "dog"), ClassLabel("dog", "hound"))
    assert class_rows(swapped, ["dog", "hound", "cat"]) == [1, 0]


def test_labels_and_names_are_taken_as_the_classes_have_them():
    found = known_as(KINDS, ["red can", "SKU-17", "CAT", ClassLabel("Katze", "cat"), "dog"])
    assert found == ("SKU-17", "SKU-17", "CAT", "cat", "dog")
    assert [*map(read_name, found)] == ["red can", "red can", "CAT", "cat", "dog"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_its_name(copied):
    one = copied(KINDS[0])
    assert (
        one == "SKU-17" and one.name == "red can" and json.dumps(one) == '"SKU-17"' and type(str(one)) is str
    )


def test_text_that_is_left_as_it_is_has_nothing_to_mend():
    plain = [chr(code) for code in range(32, 127) if chr(code) != "&"]
    for text in ["".join(plain), *(first + second for first in plain for second in plain)]:
        assert mended(text) == text == html.unescape(html.unescape(ftfy.fix_text(text)))
    assert mended("caf\u00c3\u00a9 &amp;amp; co") == "café & co" and mended("a\tb\x1b") == "a\tb"
