"""What is planted in a folder is found."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import pbprompt
from pbprompt.apps.audit.audit import Audit, look
from pbprompt.errors import InputError
from pbprompt.vision.images.items import Dataset


def paths(found: Audit, rows) -> set[str]:
    return {found.images[row].path for row in rows}


def test_counts_and_sizes(found):
    said = found.to_dict()
    assert said["classes"] == {"building": 12, "clock": 11, "mammal": 10}
    assert said["splits"] == {"train": 23, "test": 10} and said["images"] == 33
    assert said["imbalance"] == pytest.approx(1.2)
    assert said["sizes"]["median"] == [128, 128] and said["sizes"]["formats"] == {"WEBP": 32, "JPEG": 1}


def test_what_cannot_be_read(found):
    assert {path for path, _ in found.unreadable} == {"train/clock/torn.jpg", "train/clock/notes.txt"}
    assert all(why and "/" not in why for _, why in found.unreadable)


def test_the_wrong_label_comes_first(found):
    errors = {found.images[error.row].path: error for error in found.label_errors}
    assert found.classes[errors["train/clock/wrong.webp"].suggested] == "mammal"


def test_duplicates_across_classes_and_splits(found):
    conflict, leak = (
        next(group for group in found.duplicates if name in str(paths(found, group.rows)))
        for name in ("conflict", "leak")
    )
    assert conflict.exact and found.across_classes(conflict) and not found.across_splits(conflict)
    assert found.across_splits(leak) and not leak.exact and not found.across_classes(leak)
    assert all(len(group.rows) == 2 for group in (conflict, leak))


def test_everything_can_be_written_as_json(found):
    said = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert said["label_errors"][0].keys() >= {"image", "label", "split", "suggested"}


def test_a_folder_without_labels(photos, lite, tmp_path):
    folder = tmp_path / "loose"
    folder.mkdir()
    for at, file in enumerate(sorted(photos.rglob("*.webp"))[:4]):
        shutil.copy(file, folder / f"{at}.webp")
        shutil.copy(file, folder / f"{at}-again.webp")
    seen = look(folder, backbone=lite)
    assert not seen.labelled and seen.to_dict()["classes"] is None and "without labels" in seen.notes[0]
    assert len(seen.duplicates) == 4 and all(group.exact for group in seen.duplicates)
    assert not (seen.label_errors or seen.overlaps or seen.outliers)


def test_a_single_class(photos, lite, tmp_path):
    shutil.copytree(photos / "train" / "mammal", tmp_path / "pets" / "mammal")
    seen = look(tmp_path / "pets", backbone=lite)
    assert seen.labelled and seen.to_dict()["classes"] == {"mammal": 7} and "single class" in seen.notes[0]


def test_no_images_at_all(lite, tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        look(tmp_path, backbone=lite)
    (tmp_path / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    with pytest.raises(InputError, match="none of its 1 images can be read"):
        look(tmp_path, backbone=lite)


def test_a_dataset_that_is_open_already(found, photos, lite):
    whole = pbprompt.open_dataset(photos)
    seen = look(replace(whole, train=whole.train[:3], test=()), backbone=lite)
    assert isinstance(whole, Dataset) and len(seen.images) == 3


def test_it_is_a_public_name():
    assert pbprompt.look is look
    assert Path(pbprompt.apps.audit.__file__).parent.name == "audit"
