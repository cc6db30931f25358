"""`open_dataset` tells the kinds apart and says what to give where it cannot."""

import json

import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.sources import open_dataset


@pytest.fixture
def pets(tmp_path):
    """The smallest OxfordPets: a folder as the benchmark wants it, but with four images."""
    folder = tmp_path / "store" / "oxford_pets"
    (folder / "images").mkdir(parents=True)
    parts = {}
    for split in ("train", "val", "test"):
        parts[split] = [[f"{split}_{name}.jpg", label, name] for label, name in enumerate(("big_cat", "dog"))]
        for file, _, _ in parts[split]:
            Image.new("RGB", (2, 2)).save(folder / "images" / file)
    (folder / "split_zhou_OxfordPets.json").write_text(json.dumps(parts))
    return folder


def test_a_benchmark_by_name_with_root_or_variable(pets, monkeypatch):
    by_root = open_dataset("OxfordPets", root=pets.parent)
    assert by_root.classes == ("big cat", "dog") and by_root.template == "a photo of a {}, a type of pet."
    assert by_root.file(by_root.train[0]) == pets / "images" / "train_big_cat.jpg"
    assert open_dataset("oxford_pets", root=pets).content_hash == by_root.content_hash
    monkeypatch.delenv("PBPROMPT_DATA", raising=False)
    with pytest.raises(InputError, match="PBPROMPT_DATA"):
        open_dataset("oxford-pets")
    monkeypatch.setenv("PBPROMPT_DATA", str(pets.parent))
    assert open_dataset("oxford-pets").content_hash == by_root.content_hash


def test_a_benchmark_by_its_folder(pets, monkeypatch):
    assert open_dataset(pets).name == "oxford_pets"
    monkeypatch.chdir(pets.parent)
    assert open_dataset("./oxford_pets").name == "oxford_pets"
    monkeypatch.chdir(pets)
    assert open_dataset(".").name == "oxford_pets"


def test_template(pets):
    assert open_dataset(pets, template="a bad photo of {}").template == "a bad photo of {}"
    with pytest.raises(InputError, match="where the class name goes"):
        open_dataset(pets, template="no place")


def test_a_benchmark_keeps_its_names(pets, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("dog: hound\n")
    with pytest.raises(InputError, match="leave --names out"):
        open_dataset(pets, classes_file=names)


def test_a_folder_named_like_a_benchmark_is_reached_by_path(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "dtd" / name).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "dtd" / name / "1.png")
    monkeypatch.chdir(tmp_path)
    assert open_dataset("./dtd").classes == ("a", "b")
    with pytest.raises(InputError, match="DTD"):
        open_dataset("dtd", root=tmp_path)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("caltech", "did you mean 'caltech101'"),
        ("no/such/folder", "does not exist"),
        ("nothing.csv", "does not exist"),
        ("sample:oil", "has no domain 'oil'"),
    ],
)
def test_unknown_sources(source, why):
    with pytest.raises(InputError, match=why):
        open_dataset(source)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "data.zip"
    path.write_bytes(b"PK")
    with pytest.raises(InputError, match="not a dataset"):
        open_dataset(path)


@pytest.mark.parametrize("name", ["unlabelled", "Unlabeled"])
def test_a_folder_of_unlabelled_images_is_offered_and_no_class(tmp_path, name):
    for folder in ("cat", "dog", name):
        (tmp_path / folder).mkdir()
        for number in range(4):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / folder / f"{number}.png")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ("cat", "dog") and len(dataset.items) == 8
    assert f"--unlabelled {tmp_path / name} learns from it" in dataset.describe()


def test_folders_within_folders_are_classes_in_groups(tmp_path):
    for kind, name in (("cat", "siamese"), ("cat", "bengal"), ("dog", "pug")):
        (tmp_path / "a" / kind / name).mkdir(parents=True)
        for at in range(2):
            Image.new("RGB", (8, 8), (at, 0, 0)).save(tmp_path / "a" / kind / name / f"{at}.png")
    flat = open_dataset(tmp_path / "a")
    assert flat.classes == ("cat", "dog") and flat.hierarchy == () and "--nested" in flat.describe()
    nested = open_dataset(tmp_path / "a", nested=True)
    assert nested.classes == ("bengal", "pug", "siamese") and "--nested" not in nested.describe()
    assert dict(nested.hierarchy) == {"bengal": "cat", "siamese": "cat", "pug": "dog"}
    (tmp_path / "a" / "dog" / "bengal").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "dog" / "bengal" / "0.png")
    with pytest.raises(InputError, match="'bengal' is in 'cat' and in 'dog'"):
        open_dataset(tmp_path / "a", nested=True)


def test_a_column_says_what_classes_belong_to(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    Image.new("RGB", (8, 8), "red").save(tmp_path / "1.png")
    table = tmp_path / "t.csv"
    table.write_text("image,label,parent\n0.png,siamese,cat\n1.png,pug,dog\n")
    assert open_dataset(table).hierarchy == (("siamese", "cat"), ("pug", "dog"))
    table.write_text("image,label,parent\n0.png,siamese,\n1.png,pug,dog\n")
    assert open_dataset(table).hierarchy == (("pug", "dog"),)
