"""Draws: the field's procedure item by item, halves, and files that can be trusted."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.vision.images.fewshot import base_new, draw, read_draw, write_draw
from pbprompt.vision.images.items import Dataset, Item


def dataset(train, val=(), test=(), classes=5):
    def items(labels, split):
        return tuple(Item(f"{split}/{place}.jpg", label) for place, label in enumerate(labels))

    return Dataset(
        name="toy",
        root=Path("nowhere"),
        classes=tuple(f"class {label}" for label in range(classes)),
        train=items(train, "train"),
        val=items(val, "val"),
        test=items(test, "test"),
    )


def by_the_book(data, shots, seed):
    """The protocol with Python's global generator, as the field's code runs it."""
    random.seed(seed)
    drawn = []
    for items, count in ((data.train, shots), (data.val, min(shots, 4))):
        order = list(dict.fromkeys(item.label for item in items))
        part = []
        for label in order:
            group = [item for item in items if item.label == label]
            part += random.sample(group, count) if len(group) >= count else group
        drawn.append(tuple(part))
    return drawn


labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@settings(deadline=None, max_examples=100)
@given(labels, labels, st.integers(1, 20), st.integers(0, 5))
def test_equals_the_procedure_and_keeps_its_promises(train, val, shots, seed):
    data = dataset(train, val)
    drawn = draw(data, shots, seed)
    assert [drawn.train, drawn.val] == by_the_book(data, shots, seed)
    assert draw(data, shots, seed) == drawn and draw(data, shots, seed).hash == drawn.hash
    for items, source, count in ((drawn.train, train, shots), (drawn.val, val, min(shots, 4))):
        assert len(set(items)) == len(items)
        for label in range(5):
            assert sum(item.label == label for item in items) == min(count, source.count(label))
    assert set(drawn.train) <= set(data.train) and set(drawn.val) <= set(data.val)
    assert dict(drawn.short) == {f"class {c}": train.count(c) for c in range(5) if train.count(c) < shots}


def test_groups_follow_first_appearance_not_the_label():
    drawn = draw(dataset([3, 0, 3, 0, 1]), 1, 1)
    assert [item.label for item in drawn.train] == [3, 0, 1]


def test_pinned_draw():
    # Python's sampling must not drift under us: published draws depend on it
    drawn = draw(dataset([0] * 30 + [1] * 30, [0] * 9 + [1] * 9, classes=2), 4, 1)
    train, val = [4, 18, 27, 25, 54, 32, 38, 33], [7, 8, 3, 5, 15, 12, 9, 16]
    expected = [f"train/{place}.jpg" for place in train] + [f"val/{place}.jpg" for place in val]
    assert [item.path for item in drawn.train + drawn.val] == expected


def test_the_user_is_told_of_small_and_empty_classes():
    text = draw(dataset([0, 0, 0, 1, 2, 2]), 2, 1).describe()
    assert (
        "5 train, 0 val; 3 classes have fewer training items than shots (class 1 1, class 3 0, class 4 0)"
        in text
    )
    text = draw(dataset([0, 0, 0, 1], classes=2), 2, 1).describe()
    assert text.endswith("; 1 class has fewer training items than shots (class 1 1)")


def test_nothing_to_draw():
    with pytest.raises(InputError, match="1 or more"):
        draw(dataset([0]), 0, 1)
    with pytest.raises(InputError, match="for testing only"):
        draw(dataset([], test=[0, 1]), 1, 1)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 9), st.data())
def test_halves(classes, data):
    whole = dataset(
        *(data.draw(st.lists(st.integers(0, classes - 1), max_size=20)) for _ in range(3)), classes
    )
    base, new = base_new(whole)
    assert base.classes + new.classes == whole.classes
    assert len(base.classes) - len(new.classes) == classes % 2
    for split in ("train", "val", "test"):
        names = {item.path: whole.classes[item.label] for item in whole.split(split)}
        got = {item.path: half.classes[item.label] for half in (base, new) for item in half.split(split)}
        assert got == names and len(base.split(split)) + len(new.split(split)) == len(names)


def test_shots_are_drawn_before_the_halves():
    whole = dataset([0, 1, 2, 3, 4] * 6, [0, 1, 2, 3, 4] * 6, [0, 4])
    drawn = draw(whole, 2, 3)
    base, new = base_new(drawn.apply(whole))
    assert [item.path for item in base.train + new.train] == [item.path for item in drawn.train]
    assert [item.path for item in base.test] == ["test/0.jpg"]
    assert [(item.path, item.label) for item in new.test] == [("test/1.jpg", 1)]


@pytest.fixture
def kept(tmp_path):
    data = dataset([0, 1, 2, 3, 4] * 4, [0, 1, 2, 3, 4])
    path = tmp_path / "runs" / "draw.jsonl"
    write_draw(path, draw(data, 2, 1))
    return data, path


def test_draw_file_round_trip(kept):
    data, path = kept
    drawn = draw(data, 2, 1)
    assert read_draw(path, data) == drawn
    header, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (header["dataset"], header["shots"], header["seed"]) == ("toy", 2, 1)
    assert header["hash"] == drawn.hash and header["content_hash"] == data.content_hash
    assert rows[0] == {
        "split": "train",
        "image": drawn.train[0].path,
        "label": drawn.train[0].label,
        "class": "class 0",
        "domain": "",
    }
    assert len(rows) == 15


def test_an_altered_file_is_refused(kept):
    data, path = kept
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    unused = next(item for item in data.train if item not in draw(data, 2, 1).train)
    edits = {
        "altered": [*lines[:3], *lines[4:]],
        "altered ": [lines[0], lines[2], lines[1], *lines[3:]],
        "not in that split": [*lines, lines[1].replace("train/", "elsewhere/")],
        "line 2: not a JSON object": [lines[0], "{\n", *lines[2:]],
        "not the header": lines[1:],
        "line 1: not a JSON object": [],
        "whole numbers": [lines[0].replace('"shots": 2', '"shots": "2"'), *lines[1:]],
        "altered  ": [lines[0], json.dumps({"split": "train", "image": unused.path}) + "\n", *lines[2:]],
    }
    for why, text in edits.items():
        path.write_text("".join(text), encoding="utf-8")
        with pytest.raises(InputError, match=why.strip()) as caught:
            read_draw(path, data)
        assert str(path) in str(caught.value)


def test_a_draw_of_other_data_is_refused(kept):
    _, path = kept
    with pytest.raises(InputError, match="drawn from other data"):
        read_draw(path, dataset([0, 1, 2, 3, 4] * 3))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("draw") / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_draw(path, dataset([0]))
    assert len(str(caught.value).splitlines()) == 1
