"""`fit --unlabelled`, `predict --together` and names alone, as a user runs them."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import pbprompt

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Two labelled drawings of each class, two to test on, and others without labels."""
    home = tmp_path_factory.mktemp("home")
    (home / "more").mkdir()
    for name in CLASSES:
        for part in ("train", "test"):
            (home / "photos" / part / name).mkdir(parents=True)
        files = sorted((SAMPLE / name).iterdir())
        for file in files[:2]:
            shutil.copy(file, home / "photos" / "train" / name)
        for file in files[2:4]:
            shutil.copy(file, home / "photos" / "test" / name)
        for file in files[4:12]:
            shutil.copy(file, home / "more" / f"{name} {file.name}")
    return home


def test_fit_with_unlabelled_images(run, home, tmp_path):
    more = tmp_path / "more"
    shutil.copytree(home / "more", more)
    again = next((home / "photos" / "train" / "clock").iterdir())
    shutil.copy(again, more / "again.png")
    tested = next((home / "photos" / "test" / "heart").iterdir())
    shutil.copy(tested, more / "tested.png")
    (more / "broken.png").write_bytes(b"no image")
    model, labels = tmp_path / "model", tmp_path / "labels.csv"
    code, _, err = run(
        "fit", home / "photos", "--unlabelled", more, "--pseudo-labels", labels, "--out", model
    )
    assert code == 0, err
    assert "1 of the unlabelled images are labelled too" in err
    assert "1 of the unlabelled images are test images too" in err and "tested.png" in err
    assert "unreadable: 1 images" in err and "unlabelled: 27 images" in err
    assert "left out in turn" in err and ("they are used" in err or "they are not used" in err)
    rows = list(csv.DictReader(labels.read_text().splitlines()))
    assert len(rows) == 25 and {row["label"] for row in rows} <= set(CLASSES)
    assert all(0 < float(row["probability"]) <= 1 and row["kept"] in ("yes", "no") for row in rows)
    data = json.loads((model / "config.json").read_text())["data"]
    assert data["unlabelled"] == 25 and "unlabelled count as" in (model / "README.md").read_text()


def test_names_and_images_alone_then_predict(run, home, tmp_path):
    model = tmp_path / "model"
    code, _, err = run("fit", "--unlabelled", home / "more", "--classes", "clock,heart,cat", "--out", model)
    assert code == 0 and "they are used" in err
    code, out, _ = run("predict", home / "more", "--model", model, "--json")
    said = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(said) == 24
    assert sum(row["label"] in row["image"] for row in said) >= 12


def test_together(run, home, tmp_path):
    model = tmp_path / "model"
    assert run("fit", home / "photos", "--out", model)[0] == 0
    code, out, err = run("predict", home / "more", "--model", model, "--together", "--json")
    assert code == 0 and "together: 24 images" in err and len(out.splitlines()) == 24
    code, out, _ = run("evaluate", model, home / "photos", "--together", "--json")
    assert code == 0 and {"accuracy", "nll", "ece"} < set(json.loads(out)["together"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fit", "--out", "m"), "nothing to learn from"),
        (("fit", "--unlabelled", "more", "--out", "m"), "nothing to learn from"),
        (("fit", "photos", "--pseudo-labels", "x.csv", "--out", "m"), "give --unlabelled"),
        (("fit", "photos", "--unlabelled", "nowhere", "--out", "m"), "nowhere"),
        (("fit", "photos", "--unlabelled", "empty", "--out", "m"), "empty"),
        (("fit", "photos", "--method", "coop", "--unlabelled", "more", "--out", "m"), "use conjugate"),
        (("fit", "--unlabelled", "more", "--classes", "cat", "--out", "m"), "two names"),
        (("predict", "more", "--classes", "cat,dog", "--together"), "give --model"),
    ],
)
def test_what_makes_no_sense_is_told(run, home, monkeypatch, arguments, sentence):
    monkeypatch.chdir(home)
    (home / "empty").mkdir(exist_ok=True)
    code, _, err = run(*arguments)
    assert code != 0 and sentence in err and "Traceback" not in err
    assert not (home / "m").exists()
