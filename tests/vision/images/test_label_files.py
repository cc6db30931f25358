"""What labelling tools export is read as they mean it; what is wrong is named by file and field.

The files in `label_files/` are what the tools' own code wrote: `coco.json` and `label-studio*.json` the
converter of label-studio-sdk 2.1.2 (of a task as the server stores it), `fiftyone-*.json` the exporter of
fiftyone 1.22.1; `fiftyone-samples.json` has its samples as they store themselves. Paths were made relative.
"""

import contextlib
import copy
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.sources import open_dataset

FILES = Path(__file__).parent / "label_files"
ONE = {"cats/1.png": ["cat"], "cats/2.png": ["cat"], "dogs/1.png": ["big dog"], "dogs/2.jpg": ["big dog"]}
SEVERAL = {"cats/1.png": ["big dog", "cat"], "dogs/1.png": ["big dog"], "none.png": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The images that the files name: Label Studio's local files and uploads, and FiftyOne's own."""
    root = tmp_path_factory.mktemp("labels")
    for base in ("photos", "data", "."):
        for name in (*ONE, "none.png"):
            (root / base / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 6)).save(root / base / name)
    Image.new("RGB", (8, 6)).save(root / "0a1b2c3d-2.jpg")
    return root


def opened(folder, value, root=None):
    path = folder / "labels.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return open_dataset(path, root=root)


def found(data):
    """Images with the names of their labels, as the tools' files call them."""
    if data.multi_label:
        return {item.path: [data.classes[label] for label in item.labels] for item in data.items}
    return {item.path: [data.classes[item.label]] for item in data.items}


@pytest.mark.parametrize("name", ["fiftyone-plain", "fiftyone-indexed", "fiftyone-told", "fiftyone-samples"])
def test_fiftyone(folder, name):
    data = opened(folder, (FILES / f"{name}.json").read_text())
    prefix = "data/" if name == "fiftyone-samples" else ""  # of which paths are relative to the file
    assert found(data) == {prefix + path: labels for path, labels in ONE.items()}
    assert [path for path, why in data.skipped if why == "without a label"] == [f"{prefix}none.png"]
    if prefix:  # its tags are a split
        assert [item.path for item in data.test] == ["data/cats/2.png", "data/dogs/2.jpg"]


@pytest.mark.parametrize("name", ["label-studio", "label-studio-min"])
def test_label_studio(folder, name):
    data = opened(folder, (FILES / f"{name}.json").read_text())
    named = {path if path == "dogs/2.jpg" else f"photos/{path}": label for path, label in ONE.items()}
    named["0a1b2c3d-2.jpg"] = named.pop("dogs/2.jpg")  # an upload, beside the file
    assert found(data) == named
    (folder / "upload" / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "0a1b2c3d-2.jpg", folder / "upload" / "1")
    try:
        assert "upload/1/0a1b2c3d-2.jpg" in found(opened(folder, (FILES / f"{name}.json").read_text()))
    finally:
        shutil.rmtree(folder / "upload")


@pytest.mark.parametrize("name", ["label-studio-several", "label-studio-min-several", "fiftyone-several"])
def test_several_labels_make_it_multi_label(folder, name):
    data = opened(folder, (FILES / f"{name}.json").read_text())
    local = "" if name == "fiftyone-several" else "photos/"
    expected = {local + path: labels for path, labels in SEVERAL.items()}
    if name == "fiftyone-several":  # which writes none for an image that nobody labelled
        del expected["none.png"]
    assert data.multi_label and found(data) == expected


def test_coco_counts_each_class_of_an_image_once(folder):
    data = opened(folder, (FILES / "coco.json").read_text())
    assert found(data) == {"cats/1.png": ["cat"], "dogs/1.png": ["big dog"]}
    assert ("none.png", "without a label") in data.skipped
    value = json.loads((FILES / "coco.json").read_text())
    value["annotations"][1]["category_id"] = 0
    data = opened(folder, value, root=folder / "photos")
    assert data.multi_label and found(data) == SEVERAL


def test_ground_truth_decides_where_annotations_contradict(folder):
    tasks = json.loads((FILES / "label-studio.json").read_text())
    second = copy.deepcopy(tasks[0]["annotations"][0])
    second["result"][0]["value"]["choices"] = ["big dog"]
    tasks[0]["annotations"].append(second)
    with pytest.raises(InputError, match=r"task 0: .*contradict each other \(cat and big dog\): mark one"):
        opened(folder, tasks)
    second["ground_truth"] = True
    assert found(opened(folder, tasks))["photos/cats/1.png"] == ["big dog"]


def changed(name, *path_and_value):
    value = json.loads((FILES / f"{name}.json").read_text())
    *path, last, new = path_and_value
    place = value
    for step in path:
        place = place[step]
    place[last] = new
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (changed("label-studio", 1, "data", "image", "https://x.org/1.png"), "task 1: .*an address: fetch"),
        (changed("label-studio", 1, "data", "image", "/data/local-files/?d=..%2f1.png"), "task 1: .*outside"),
        (changed("label-studio", 1, "data", {"a": "b", "c": "d"}), "task 1 data: which of"),
        (changed("label-studio", 0, "annotations", None), "task 0: field 'annotations' is null, no list"),
        (
            changed("label-studio", 0, "annotations", 0, "result", 0, "from_name", "quality"),
            "several controls, .*kind.*quality",
        ),
        ([{"image": "a.png", "kind": "cat", "mood": "bad"}], "which of .*kind.*mood.*call it 'choice'"),
        (
            changed("fiftyone-indexed", "labels", "cats/1", 7),
            r"labels\['cats/1'\]: field 'label' is 7, no str",
        ),
        (changed("fiftyone-plain", "labels", {"cats/1": None}), "none of its 1 images has a label"),
        (changed("fiftyone-plain", "labels", {"../x.png": "cat"}), "outside the dataset's folder"),
        (changed("fiftyone-several", "labels", "cats/1", ["a|b", "c"]), r"label 'a\|b' has a '\|' in it"),
        (changed("fiftyone-samples", "samples", 0, "filepath", 5), r"samples\[0\]: field 'filepath' is 5"),
        (changed("coco", "annotations", 0, "category_id", 9), r"annotations\[0\]: category_id 9 is none"),
        (changed("coco", "images", 0, "file_name", None), r"images\[0\]: field 'file_name' is null, no str"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_is_named(folder, value, why):
    with pytest.raises(InputError, match=why) as caught:
        opened(folder, value)
    assert str(folder / "labels.json") in str(caught.value) and "\n" not in str(caught.value)


def test_two_files_of_one_name(folder):
    Image.new("RGB", (8, 6)).save(folder / "data" / "cats" / "1.webp")
    try:
        with pytest.raises(InputError, match=r"cats/1.png and cats/1.webp have this name"):
            opened(folder, (FILES / "fiftyone-plain.json").read_text())
    finally:
        (folder / "data" / "cats" / "1.webp").unlink()


def test_a_huge_file_is_not_read(folder, monkeypatch):
    monkeypatch.setattr("pbprompt.files.MOST_JSON", 10)
    with pytest.raises(InputError, match=r"labels.json: over .* of JSON"):
        opened(folder, [{"image": "a.png", "choice": "cat"}])


leaves = st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["", "cat", "cats/1.png", "ß"])
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner)
)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_damage_is_read_or_refused(folder, data):
    value = json.loads(data.draw(st.sampled_from(sorted(FILES.glob("*.json")))).read_text())
    place = value
    while True:
        keys = [*place] if isinstance(place, dict) else [*range(len(place))]
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            place[key] = data.draw(anything)
            break
        place = place[key]
    with contextlib.suppress(InputError):
        opened(folder, value)
