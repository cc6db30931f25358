"""Class folders, flat and split."""

import os

import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.images import HEIC, open_image
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import list_images


def put(root, *paths):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(file, format="PNG")


def paths(items):
    return [item.path for item in items]


def test_flat_folders(tmp_path):
    put(tmp_path, *(f"{name}/{place}.jpg" for name in ("red_fox", "AnnualCrop") for place in range(10)))
    put(tmp_path, "red_fox/deep/er/x", "loose.png", ".cache/y.png")
    (tmp_path / "red_fox" / "notes.txt").write_text("hello")
    (tmp_path / "red_fox" / "zero.jpg").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    data = open_dataset(tmp_path)
    assert data.classes == ("AnnualCrop", "red_fox")
    assert [*map(read_name, data.classes)] == ["Annual Crop", "red fox"] and data.name == tmp_path.name
    assert (len(data.train), len(data.val), len(data.test)) == (21, 0, 0) and not data.split_by_seed
    split = open_dataset(tmp_path, held_out=(0.2, 0.3))
    assert (len(split.train), len(split.val), len(split.test)) == (11, 4, 6) and split.split_by_seed
    assert len(set(paths(data.items))) == 21 and "red_fox/deep/er/x" in paths(data.items)
    assert all(data.classes[item.label] in item.path for item in data.items)
    assert set(data.skipped) == {
        ("red_fox/notes.txt", "not an image"),
        ("red_fox/zero.jpg", "empty"),
        ("loose.png", "outside the class folders"),
    }
    assert "seed 1" in split.describe()
    assert open_dataset(tmp_path, seed=2, held_out=(0.2, 0.3)).train != split.train
    assert open_dataset(str(tmp_path)).content_hash == data.content_hash


def test_names_with_control_characters_are_told_without(tmp_path):
    root = tmp_path / "\x1b]0;x\x07"
    put(root, "\x1b[31mcat/1.png", "dog/1.png")
    (root / "dog" / "\x1b[31mnote.txt").write_text("hello")
    told = open_dataset(root).describe()
    assert r"\u001b]0;x\u0007: 2 classes (\u001b[31mcat, dog)" in told and r"(dog/\u001b[31mnote.txt)" in told
    assert "\x1b" not in told and "\x07" not in told


def test_split_folders(tmp_path):
    put(
        tmp_path,
        "train/cat/1.png",
        "train/dog/1.png",
        "train/dog/2.png",
        "Validation/cat/3.png",
        "test/dog/4.png",
    )
    put(tmp_path, "annotations/x.png", "train/stray.png")
    data = open_dataset(tmp_path)
    assert paths(data.train) == ["train/cat/1.png", "train/dog/1.png", "train/dog/2.png"]
    assert paths(data.val) == ["Validation/cat/3.png"] and paths(data.test) == ["test/dog/4.png"]
    assert [item.label for item in data.train] == [0, 1, 1]
    assert dict(data.skipped) == dict.fromkeys(
        ("annotations/x.png", "train/stray.png"), "outside the class folders"
    )


def test_val_serves_as_test_where_there_is_none(tmp_path):
    put(tmp_path, "train/cat/1.png", "train/dog/1.png", "val/cat/2.png")
    data = open_dataset(tmp_path)
    assert paths(data.test) == ["val/cat/2.png"] and not data.val and "val is the test set" in data.describe()


def test_a_class_may_be_called_train(tmp_path):
    put(tmp_path, "train/1.png", "bus/1.png", "tram/1.png")
    assert open_dataset(tmp_path).classes == ("bus", "train", "tram")


def test_codes_are_noted_and_numbers_sorted(tmp_path):
    put(tmp_path, "10/1.png", "9/1.png", "1/1.png")
    data = open_dataset(tmp_path)
    assert data.classes == ("1", "9", "10") and "--names FILE" in data.describe()
    names = tmp_path / "names.txt"
    names.write_text("10: ten\n9: nine\n")
    named = open_dataset(tmp_path, classes_file=names)
    assert [*map(read_name, named.classes)] == ["1", "nine", "ten"] and "are codes" not in named.describe()
    assert named.classes == data.classes


def test_equal_names_are_refused_and_a_classes_file_helps(tmp_path):
    put(tmp_path, "red_fox/1.png", "Red-Fox/1.png")
    with pytest.raises(InputError, match="both named"):
        open_dataset(tmp_path)
    names = tmp_path / "names.json"
    names.write_text('{"Red-Fox": "the other fox"}')
    named = open_dataset(tmp_path, classes_file=names)
    assert [*map(read_name, named.classes)] == ["the other fox", "red fox"]


def test_nothing_to_learn_from(tmp_path):
    with pytest.raises(InputError, match="no class folders"):
        open_dataset(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_text("text")
    with pytest.raises(InputError, match=r"no images.*a/x\.jpg is not an image.*into its class folders"):
        open_dataset(tmp_path)
    put(tmp_path, "a/1.png")
    with pytest.raises(InputError, match="only one class"):
        open_dataset(tmp_path)


def test_a_photograph_in_heic_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pbprompt.vision.images.images._formats", lambda: ["JPEG", "PNG"]
    )  # the extra may be there
    put(tmp_path, "a/1.png", "b/1.png")
    (tmp_path / "a" / "2.heic").write_bytes(b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic")
    assert open_dataset(tmp_path).skipped == (("a/2.heic", HEIC),)
    assert tmp_path / "a" / "2.heic" in list_images(tmp_path)  # so that it is reported, not passed over


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_class_folder_without_images_is_named(tmp_path, split):
    put(tmp_path, f"{split}a/1.png", f"{split}b/1.png", f"{split}b/2.png", "test/a/3.png")
    (tmp_path / f"{split}goat").mkdir()
    assert "Class folders without images: goat." in open_dataset(tmp_path).describe()
    put(tmp_path, f"{split}goat/1.png")
    assert "without images" not in open_dataset(tmp_path).describe()


def test_linked_folders_count_both(tmp_path):
    put(tmp_path / "set", "train/a/1.png", "train/b/1.png", "val/a/2.png")
    (tmp_path / "set" / "test").symlink_to(tmp_path / "set" / "val")
    data = open_dataset(tmp_path / "set")
    assert paths(data.test) == ["test/a/2.png"] and paths(data.val) == ["val/a/2.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_pipes_are_left_out_and_not_waited_for(tmp_path, tiny_vit):
    put(tmp_path, *(f"{name}/{place}.png" for name in ("cat", "dog") for place in range(3)))
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    data = open_dataset(tmp_path)
    assert data.skipped == (("cat/pipe.png", "not a regular file"),) and len(data.items) == 6
    with pytest.raises(InputError, match=r"pipe\.png: a pipe, socket or device"):
        open_image(tmp_path / "cat" / "pipe.png")
    bank = FeatureCache(tiny_vit, progress=False)
    with pytest.raises(InputError, match=r"pipe\.png: not a regular file"):
        bank.encode(tmp_path, [Item("cat/pipe.png", 0)])
