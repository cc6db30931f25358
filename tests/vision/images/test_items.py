"""The dataset type: splits, domains, hash and description."""

from dataclasses import replace
from pathlib import Path

import pytest

from pbprompt.errors import InputError
from pbprompt.vision.images.items import Dataset, Item

PETS = Dataset(
    name="pets",
    root=Path("/data/pets"),
    classes=("cat", "dog"),
    train=(Item("c/1.jpg", 0, "photo"), Item("d/1.jpg", 1, "sketch")),
    val=(Item("c/2.jpg", 0, "photo"),),
    test=(Item("d/2.jpg", 1, "photo"),),
)


def test_splits_files_and_domains():
    assert [item.path for item in PETS.items] == ["c/1.jpg", "d/1.jpg", "c/2.jpg", "d/2.jpg"]
    assert PETS.split("val") == PETS.val
    assert PETS.file(PETS.val[0]) == Path("/data/pets/c/2.jpg")
    assert PETS.domains == ("photo", "sketch")
    with pytest.raises(InputError, match="train, val or test"):
        PETS.split("validation")


def test_one_domain():
    photo = PETS.only("photo")
    assert photo.name == "pets:photo" and photo.home == "photo"
    assert [item.path for item in photo.items] == ["c/1.jpg", "c/2.jpg", "d/2.jpg"]
    with pytest.raises(InputError, match="photo, sketch"):
        PETS.only("cartoon")


def test_labels_must_be_classes():
    for label in (-1, 2):
        with pytest.raises(InputError, match="0 to 1"):
            replace(PETS, test=(Item("x.jpg", label),))


def test_hash_sees_content_and_nothing_else():
    same = replace(PETS, root=Path("/elsewhere"), name="other", notes=("x",), template="{}")
    assert same.content_hash == PETS.content_hash
    item = PETS.train[0]
    changes = [
        replace(PETS, classes=("cat", "wolf")),
        replace(PETS, train=PETS.train[::-1]),
        replace(PETS, train=(replace(item, path="c/9.jpg"), PETS.train[1])),
        replace(PETS, train=(replace(item, label=1), PETS.train[1])),
        replace(PETS, train=(replace(item, domain="x"), PETS.train[1])),
        replace(PETS, train=(*PETS.train, *PETS.val), val=()),
    ]
    assert len({changed.content_hash for changed in [PETS, *changes]}) == 7


def test_hash_is_pinned():
    # draw files carry it: a change makes every draw file unreadable
    assert PETS.content_hash == "74836f6c7af5da38cf513df01f5ca565f56421fd86011fc5aaa964298d2ea80e"


def test_description_names_what_was_left_out():
    text = replace(
        PETS, notes=("Split by hand",), skipped=(("x.txt", "not an image"), ("y", "empty"))
    ).describe()
    assert "2 classes (cat, dog); 2 train, 1 val, 1 test." in text
    assert "Domains: photo 3, sketch 1. Split by hand." in text
    assert "Skipped 2 files: 1 not an image; 1 empty (x.txt, y)." in text
