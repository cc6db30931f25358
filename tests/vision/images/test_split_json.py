"""Split files: read as published, written the same, anything else refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.items import SPLITS
from pbprompt.vision.images.label_files import read_split_json
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset

GOOD = {
    "train": [["b/1.png", 1, "sea_horse"], ["a/1.png", 0, "hard-leaved ñ"]],
    "val": [["a/2.png", 0, "hard-leaved ñ"]],
    "test": [["b/2.png", 1, "sea_horse"]],
}


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def images(folder):
    for part in GOOD.values():
        for path, _, _ in part:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (2, 2)).save(folder / path)


@pytest.mark.parametrize("beside", [".", "images"])
def test_labels_and_order_are_kept(tmp_path, beside):
    images(tmp_path / beside)
    data = open_dataset(written(tmp_path / "split.json", GOOD))
    assert data.classes == ("hard-leaved ñ", "sea_horse") and data.root == tmp_path / beside
    assert [(item.path, item.label) for item in data.train] == [("b/1.png", 1), ("a/1.png", 0)]
    assert [item.path for item in data.test] == ["b/2.png"]


def test_root_names_and_template_can_be_given(tmp_path):
    path = written(tmp_path / "split.json", GOOD)
    with pytest.raises(InputError, match="not beside it"):
        open_dataset(path)
    names = written(tmp_path / "names.json", {"sea_horse": "horse of the sea"})
    data = open_dataset(path, root=tmp_path / "x", classes_file=names, template="{} texture.")
    assert read_name(data.classes[1]) == "horse of the sea" and data.template == "{} texture."
    assert data.root == tmp_path / "x"


triples = st.lists(
    st.tuples(st.text("abc/", min_size=1).map(lambda text: f"x{text}y"), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=50)
@given(st.tuples(triples, triples, triples))
def test_items_are_those_of_the_file(tmp_path_factory, parts):
    folder = tmp_path_factory.mktemp("split")
    value = {
        split: [[path, label, f"name {label}"] for path, label in part]
        for split, part in zip(SPLITS, parts, strict=True)
    }
    value["test"] += [[f"z{label}", label, f"name {label}"] for label in range(3)]
    data = open_dataset(written(folder / "a.json", value), root=folder)
    for split in SPLITS:
        read = [[item.label, data.classes[item.label]] for item in data.split(split)]
        assert read == [row[1:] for row in value[split]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no 'train', 'val' or 'test'"),
        ({"images": []}, "no 'train', 'val' or 'test'"),
        ({"train": {"a": 1}}, "'train' is not a list"),
        ({"train": [["a.jpg", 0]]}, r"train\[0\]: \[\"a.jpg\", 0\] is not"),
        ({"train": [["a.jpg", 0, "cat"], ["b.jpg", "1", "dog"]]}, r"train\[1\]"),
        ({"train": [["a.jpg", True, "cat"]]}, r"train\[0\]"),
        ({"train": [["a.jpg", -1, "cat"]]}, r"train\[0\]"),
        ({"val": [["/etc/passwd", 0, "cat"]]}, r"val\[0\]: .*absolute"),
        ({"test": [["../../x.jpg", 0, "cat"]]}, r"test\[0\]: .*outside"),
        ({"test": [["x\\..\\..\\y.jpg", 0, "cat"]]}, r"test\[0\]: .*outside"),
    ],
)
def test_bad_files(tmp_path, value, why):
    path = written(tmp_path / "split.json", value)
    with pytest.raises(InputError, match=why) as caught:
        read_split_json(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ([["a.jpg", 0, "cat"], ["b.jpg", 2, "dog"]], "no item has label 1"),
        ([["a.jpg", 0, "cat"], ["b.jpg", 0, "dog"]], "label 0 is 'cat' and 'dog'"),
        ([["a.jpg", 0, "sea_horse"], ["b.jpg", 1, "sea horse"]], "both named"),
        ([], "no item has label 0"),
    ],
)
def test_bad_labels(tmp_path, train, why):
    with pytest.raises(InputError, match=why):
        open_dataset(written(tmp_path / "split.json", {"train": train}), root=tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.text(max_size=5) | st.just("a.jpg"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(SPLITS), inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(SPLITS), json_values) | json_values)
def test_any_json_is_read_or_refused(tmp_path_factory, value):
    path = written(tmp_path_factory.mktemp("any") / "split.json", value)
    try:
        open_dataset(path, root=path.parent)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
