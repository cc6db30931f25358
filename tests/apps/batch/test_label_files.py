"""What is written for a labelling tool comes back from it as it was said."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.apps.batch.formats import Written
from pbprompt.apps.batch.label_files import TOOLS, label_file, labelling_config
from pbprompt.errors import InputError
from pbprompt.vision.images.sources import open_dataset

NAMES = ("a b.jpg", "%41.png", "deep/ü.webp", "deep/x.y", "q?d=z.png", "'=1.png")
CLASSES = ("cat", "=dog", 'the "big" <one> & co', "été")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for place, name in enumerate(NAMES):
        (root / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8 + place, 6)).save(root / name, "PNG")
    return root


def accepted(tool, text):
    """A tool's own file once everybody agreed: in Label Studio a prediction is no annotation before."""
    if tool != "label-studio":
        return text
    tasks = json.loads(text)
    for task in tasks:
        task["annotations"] = [{"result": one["result"]} for one in task.pop("predictions")]
    return json.dumps(tasks)


def read_back(tool, text, root, tmp_path):
    path = tmp_path / ("labels.csv" if tool == "csv" else "labels.json")
    path.write_text(accepted(tool, text), encoding="utf-8")
    data = open_dataset(path, root=root)
    if data.multi_label:
        return {item.path: {data.classes[label] for label in item.labels} for item in data.items}
    return {item.path: data.classes[item.label] for item in data.items}


shares = st.floats(0, 1).map(lambda share: round(share, 6))
labelled = st.lists(st.sampled_from(CLASSES), min_size=len(NAMES), max_size=len(NAMES)).filter(
    lambda labels: len({*labels}) > 1  # of which a data set needs two
)


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=20, deadline=None)
@given(labels=labelled, score=shares)
def test_single_labels_come_back(folder, tmp_path_factory, tool, labels, score):
    said = dict(zip(NAMES, labels, strict=True))
    scores = dict.fromkeys(CLASSES, score)
    answers = [Written(str(folder / name), label, score, scores=scores) for name, label in said.items()]
    written = label_file(answers, tool, folder)
    assert (written.images, written.classes, written.several) == (len(NAMES), [*CLASSES], False)
    assert read_back(tool, written.text, folder, tmp_path_factory.mktemp("out")) == said


@pytest.mark.parametrize("tool", TOOLS)
def test_several_labels_come_back(folder, tmp_path, tool):
    said = dict(zip(NAMES, ((), CLASSES, CLASSES[:2], CLASSES[2:], CLASSES[:1], ()), strict=True))
    scores = dict.fromkeys(CLASSES, 0.5)
    answers = [Written(str(folder / name), labels=of, scores=scores) for name, of in said.items()]
    found = read_back(tool, label_file(answers, tool, folder).text, folder, tmp_path)
    assert found == {name: {*of} for name, of in said.items()}


def test_each_tool_has_the_probabilities_and_coco_the_size(folder):
    answers = [Written(str(folder / NAMES[1]), "cat", 0.75, scores={"cat": 0.75, "dog": 0.25})]
    texts = {tool: label_file(answers, tool, folder).text for tool in TOOLS}
    (task,) = json.loads(texts["label-studio"])
    assert task["data"] == {"image": "/data/local-files/?d=%2541.png"}
    assert task["predictions"][0]["score"] == 0.75 and "annotations" not in task
    told = json.loads(texts["fiftyone"])
    assert told == {"classes": ["cat", "dog"], "labels": {"%41": {"label": "cat", "confidence": 0.75}}}
    coco = json.loads(texts["coco"])
    assert coco["images"] == [{"id": 1, "file_name": "%41.png", "width": 9, "height": 6}]
    assert coco["annotations"][0]["bbox"] == [0, 0, 9, 6] and coco["annotations"][0]["score"] == 0.75
    assert [one["name"] for one in coco["categories"]] == ["cat", "dog"]
    assert texts["csv"] == "image,label,score\n%41.png,cat,0.75\n"
    assert 'value="&lt;a>' not in labelling_config(["<a>"], False)


def test_predictions_of_label_studio_are_no_labels(folder, tmp_path):
    path = tmp_path / "tasks.json"
    answers = [Written(str(folder / name), "cat", 0.75) for name in NAMES]
    path.write_text(label_file(answers, "label-studio", folder).text)
    with pytest.raises(InputError, match=f"none of its {len(NAMES)} images has a label: annotate some first"):
        open_dataset(path, root=folder)


@pytest.mark.parametrize(
    ("images", "root", "why"),
    [
        ([], ".", "no answer in it"),
        (["gone.jpg"], ".", "gone.jpg: no such file: unpack"),
        (["a b.jpg"], "deep", r"a b.jpg: not in .*deep: give the folder of all images as --root"),
        (["a b.jpg", "a b.png"], ".", r"a b.png: another image has this name without its suffix"),
    ],
)
def test_what_cannot_be_written_is_named(folder, monkeypatch, images, root, why):
    monkeypatch.chdir(folder)
    Image.new("RGB", (8, 6)).save("a b.png")
    try:
        with pytest.raises(InputError, match=why):
            label_file([Written(name, "cat") for name in images], "fiftyone", Path(root))
    finally:
        Path("a b.png").unlink()


def test_label_studio_takes_it(folder):
    interface = pytest.importorskip("label_studio_sdk.label_interface")
    said = ("cat", CLASSES[2])
    answers = [Written(str(folder / name), label, 0.5) for name, label in zip(NAMES, said, strict=False)]
    written = label_file(answers, "label-studio", folder)
    project = interface.LabelInterface(labelling_config(written.classes, written.several))
    for task in json.loads(written.text):
        assert project.validate_prediction(task["predictions"][0], return_errors=True) == []


def test_fiftyone_takes_it(folder, tmp_path):
    importers = pytest.importorskip("fiftyone.utils.data.importers")
    answers = [Written(str(folder / name), "cat", 0.5, scores={"cat": 0.5}) for name in NAMES]
    path = tmp_path / "labels.json"
    path.write_text(label_file(answers, "fiftyone", folder).text)
    found = importers.FiftyOneImageClassificationDatasetImporter(data_path=str(folder), labels_path=str(path))
    found.setup()
    said = {os.path.relpath(image, folder): label for image, _, label in found}
    assert {*said} == {*NAMES} and {(one.label, one.confidence) for one in said.values()} == {("cat", 0.5)}
