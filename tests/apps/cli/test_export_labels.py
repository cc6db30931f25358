"""`pbprompt export --labels`: from answers to a labelling tool, and back into `fit`."""

import json

import pytest
from PIL import Image

from pbprompt.vision.images.sources import open_dataset


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for name in ("clock", "heart", "mammal"):
        (root / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 6)).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def answers(photos, tmp_path_factory):
    """As `predict` would have it, the folders' names throughout."""
    scores = '"{""clock"": 0.5, ""heart"": 0.25, ""mammal"": 0.25}"'
    rows = [f"{file},{file.parent.name},0.5,{scores}" for file in sorted(photos.glob("*/*"))]
    path = tmp_path_factory.mktemp("answers") / "answers.csv"
    path.write_text("\n".join(["image,label,score,scores", *rows, ""]))
    return path


@pytest.mark.parametrize("tool", ["fiftyone", "coco", "csv"])
def test_answers_go_out_and_come_back(run, answers, photos, tmp_path, tool):
    out = tmp_path / f"{tool}.{'csv' if tool == 'csv' else 'json'}"
    code, said, err = run("export", answers, "--labels", tool, "--root", photos, "--out", out)
    assert code == 0, err
    assert f"saved: {out}: 6 images, 3 classes" in said and "next: pbprompt fit EXPORTED --root" in err
    data = open_dataset(out, root=photos)
    assert all(item.path.startswith(f"{data.classes[item.label]}/") for item in data.items)
    assert len(data.items) == 6
    code, _, err = run("export", answers, "--labels", tool, "--root", photos, "--out", out)
    assert code == 2 and f"{out}: exists already" in err


def test_label_studio_is_told_its_configuration(run, answers, photos, tmp_path):
    out = tmp_path / "tasks.json"
    code, said, err = run("export", answers, "--labels", "label-studio", "--root", photos, "--out", out)
    assert code == 0, err
    assert '<Choice value="clock"/>' in said and len(json.loads(out.read_text())) == 6


def test_what_does_not_go_together(run, answers, photos, tmp_path):
    labels = ("--labels", "coco")
    for arguments, why in [
        ((answers, *labels, "--out", tmp_path / "a.csv"), "give the name of a file that ends in .json"),
        ((answers, *labels, "--out", tmp_path / "a.json"), "give the folder of all images as --root"),
        ((answers, *labels, "--out", tmp_path / "a.json", "--classes", "dog"), "--classes: --labels writes"),
        ((photos, "--out", tmp_path / "a.onnx", "--root", tmp_path), "--root: it is for --labels"),
        ((photos, *labels, "--out", tmp_path / "a.json"), "no answers: give what"),
    ]:
        code, _, err = run("export", *arguments)
        assert code == 2 and why in err, err
    assert not [*tmp_path.iterdir()]
