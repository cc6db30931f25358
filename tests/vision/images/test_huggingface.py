"""Hugging Face datasets, with a stand-in for the library that has just what is used of it."""

import io
import os
import sys
import types

import pytest
from PIL import Image as Pillow

from pbprompt.errors import InputError
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.sources import open_dataset

pytestmark = pytest.mark.usefixtures("own_cache")


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    def __init__(self, names):
        self.names = names

    def int2str(self, label):
        return self.names[label]


class Part:
    """One split: rows of {"image": {"bytes", "path"}, "label"}."""

    def __init__(self, rows, features):
        self.rows, self.features, self._fingerprint = rows, features, "abc"

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def cast_column(self, name, feature):
        assert name in self.features and feature.decode is False
        return self


def part(count, features=None, folder=None):
    rows = []
    for place in range(count):
        buffer = io.BytesIO()
        Pillow.new("RGB", (2, 2), (place, 0, 0)).save(buffer, "PNG")
        value = {"bytes": buffer.getvalue(), "path": None}
        if folder is not None and place == 0:
            (folder / "x.PNG").write_bytes(buffer.getvalue())
            value = {"bytes": None, "path": str(folder / "x.PNG")}
        rows.append({"image": value, "label": place % 2})
    return Part(rows, features or {"image": Image(), "label": ClassLabel(["tabby_cat", "dog"])})


@pytest.fixture
def hub(monkeypatch):
    """What `load_dataset` finds, by name."""
    found = {}
    library = types.ModuleType("datasets")
    library.Image = Image
    library.load_dataset = lambda name: found[name]
    library.load_from_disk = lambda path: found["disk"]
    monkeypatch.setitem(sys.modules, "datasets", library)
    return found


def test_splits_and_names(hub, tmp_path):
    hub["me/pets"] = {
        "train": part(6, folder=tmp_path),
        "validation": part(2),
        "test": part(4),
        "extra": part(3),
    }
    data = open_dataset("hf:me/pets")
    assert data.name == "pets" and data.classes == ("dog", "tabby_cat")
    assert [len(items) for items in (data.train, data.val, data.test)] == [6, 2, 4]
    assert [item.path for item in data.train[:2]] == ["train/0000000.png", "train/0000001"]
    assert [open_image(data.file(item)).getpixel((0, 0))[0] for item in data.train] == list(range(6))
    assert [item.label for item in data.train] == [1, 0] * 3
    assert open_dataset("hf:me/pets") == data


def test_a_single_split_is_all_to_train_on_but_for_a_test(hub):
    hub["me/one"] = {"train": part(20)}
    for held_out, wanted in (((0.0, 0.0), [20, 0, 0]), ((0.2, 0.3), [10, 4, 6])):
        data = open_dataset("hf:me/one", held_out=held_out)
        assert [len(items) for items in (data.train, data.val, data.test)] == wanted


def test_a_saved_folder(hub, tmp_path):
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "dataset_info.json").write_text("{}")
    hub["disk"] = part(10)
    assert open_dataset(tmp_path).name == tmp_path.name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_pipes_are_not_waited_for(hub, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    hub["me/pipe"] = {"train": part(4)}
    for path in (str(tmp_path / "pipe.png"), str(tmp_path / "none.png"), None):
        hub["me/pipe"]["train"].rows[1]["image"] = {"bytes": None, "path": path}
        with pytest.raises(InputError, match=r"hf:me/pipe: names an image .* no regular file"):
            open_dataset("hf:me/pipe")
    (tmp_path / "dataset_info.json").write_text("{}")
    hub["disk"] = part(10)
    with pytest.raises(InputError, match=r"pipe\.png: a pipe, socket or device"):
        open_dataset(tmp_path)


def test_columns_must_be_clear(hub):
    two = {"image": Image(), "fine": ClassLabel(["a", "b"]), "coarse": ClassLabel(["c"])}
    hub["me/two"] = {"train": part(4, two)}
    with pytest.raises(InputError, match="one class label column"):
        open_dataset("hf:me/two")


def test_splits_must_be_known(hub):
    hub["me/odd"] = {"everything": part(4)}
    with pytest.raises(InputError, match="splits are everything"):
        open_dataset("hf:me/odd")


def test_what_the_library_refuses(hub):
    with pytest.raises(InputError, match="hf:me/none: cannot be loaded"):
        open_dataset("hf:me/none")


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install -e '.*\[hf\]'"):
        open_dataset("hf:me/pets")
