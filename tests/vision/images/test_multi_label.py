"""Multi-label tables: what is read, how it is split, and what is refused."""

import json

import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.build_dataset import split_labels
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset

ROWS = {"a.png": ["beach", "dog"], "b.png": [], "c.png": ["dog"], "d.png": ["beach"]}


@pytest.fixture
def folder(tmp_path):
    for name in ROWS:
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    return tmp_path


def table(folder, text, name="t.csv"):
    (folder / name).write_text(text)
    return folder / name


def labels_of(dataset):
    return {
        one.path: [dataset.classes[label] for label in one.labels]
        for one in (*dataset.train, *dataset.val, *dataset.test)
    }


JSONL = "".join(json.dumps({"image": name, "labels": labels}) + "\n" for name, labels in ROWS.items())


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "t.csv": "image,labels\na.png,beach|dog\nb.png,\nc.png,dog\nd.png,beach\n",
        "many.csv": "image,labels\na.png,dog\na.png,beach\nb.png,\nc.png,dog | dog||\nd.png,beach\n",
        "t.tsv": "image\tlabels\na.png\tbeach| dog\nb.png\t\nc.png\tdog\nd.png\tbeach\n",
        "t.jsonl": JSONL,
        "text.jsonl": JSONL.replace('["beach", "dog"]', '"beach|dog"'),
    }.items(),
)
def test_the_same_labels_in_every_form(folder, name, text):
    path = table(folder, text, name)
    dataset = open_dataset(path)
    assert dataset.multi_label and dataset.classes == ("beach", "dog")
    assert labels_of(dataset) == ROWS
    assert dataset.describe().startswith(f"{path.stem}: 2 labels (beach, dog), 1.00 per image, 1 images with")
    assert dataset.content_hash == open_dataset(path, folder).content_hash


def test_one_label_stays_one_label(folder):
    """A column `label` is what it was, whatever stands in it or beside it."""
    path = table(folder, "image,label,labels\na.png,beach|dog,x|y\nb.png,cat,x\n")
    dataset = open_dataset(path)
    assert not dataset.multi_label and dataset.classes == ("beach|dog", "cat")
    lines = '{"image": "a.png", "label": "x", "labels": ["y"]}\n{"image": "b.png", "label": "y"}\n'
    assert not open_dataset(table(folder, lines, "t.jsonl")).multi_label


def test_doors_of_one_label_refuse_such_a_table_in_a_sentence(folder):
    dataset = open_dataset(table(folder, "image,labels\na.png,beach|dog\n"))
    with pytest.raises(InputError, match="makes it multi-label, which this cannot use"):
        dataset.single_label()
    with pytest.raises(InputError, match="t is multi-label: all its training images are used"):
        draw(dataset, 1, seed=1)
    with pytest.raises(InputError, match=r"listed twice .* or list both in a column 'labels'"):
        open_dataset(table(folder, "image,label\na.png,beach\na.png,dog\n"))


def test_splits_are_kept_and_val_tests_where_nothing_else_does(folder):
    text = "image,labels,split\na.png,beach|dog,train\nb.png,,train\nc.png,dog,val\nd.png,beach,{}\n"
    dataset = open_dataset(table(folder, text.format("test")))
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [2, 1, 1]
    dataset = open_dataset(table(folder, text.format("val")))
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [2, 0, 2]
    with pytest.raises(InputError, match="no split is named"):
        dataset.split("dev")


def test_names_from_a_file(folder):
    names = table(folder, "dog: a good dog\n", "names.txt")
    path = table(folder, "image,labels\na.png,beach|dog\nb.png,\n")
    assert [*map(read_name, open_dataset(path, classes_file=names).classes)] == ["beach", "a good dog"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("image,labels\na.png,\nb.png,\n", "no image has a label"),
        (
            "image,labels\nz.png,dog\n",
            "no images in it [^:]*: z.png is not found.: check the folder",
        ),
        ("image,labels\na.png,Dog\nb.png,dog\n", "both named 'dog'"),
        (
            "image,labels,split\na.png,dog,train\na.png,cat,test\n",
            "a.png is listed twice .* split",
        ),
        ("image,labels,split\na.png,dog,train\nb.png,cat,\n", "b.png has no split but others have"),
    ],
)
def test_what_is_wrong_is_named(folder, text, why):
    with pytest.raises(InputError, match=why):
        open_dataset(table(folder, text))


@pytest.mark.parametrize("cell", ['["a|b"]', "[1]", "null", "3"])
def test_wrong_lists_are_named(folder, cell):
    with pytest.raises(InputError, match=r"line 1: field 'labels'"):
        open_dataset(table(folder, f'{{"image": "a.png", "labels": {cell}}}\n', "t.jsonl"))


def test_every_label_trains_and_tests_where_it_can():
    items = [
        Item(f"{number}.png", 0, labels=tuple(label for label in range(4) if number % (label + 2) == 0))
        for number in range(60)
    ]
    items.append(Item("once.png", 0, labels=(4,)))
    split = split_labels(items, seed=1, test=0.3)
    assert set(split) == {item.path for item in items} and split["once.png"] == "train"
    for label in range(4):
        own = [split[item.path] for item in items if label in item.labels]
        assert 0.5 < own.count("train") / len(own) < 0.9
    assert split == split_labels(items[::-1], seed=1, test=0.3) != split_labels(items, seed=2, test=0.3)
