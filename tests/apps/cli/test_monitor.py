"""`pbprompt monitor`: answers as `predict` writes them, beside a model's own."""

import json
import random

import pytest
from PIL import Image

from pbprompt.apps.batch.formats import encode
from pbprompt.model.calibration import Calibration, calibration_text
from pbprompt.model.manifest import ModelFiles

CLASSES = ("ant", "bee")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A model's folder of which only the calibration is there."""
    n = 120
    ranks = tuple(round((2 + place) / (n + 1), 6) for place in range(n))
    sure = tuple(round(0.5 + place / (2 * n), 6) for place in range(n))
    right = tuple(share > 0.55 for share in sure)
    true = tuple(share if ok else 0.1 for share, ok in zip(sure, right, strict=True))
    found = Calibration(
        sure, right, true, 2, 2, 20, 0, CLASSES * 60, left_out=n, predicted=CLASSES * 60, familiarity=ranks
    )
    files = ModelFiles(tmp_path, {}, {"calibration.json": calibration_text(found).encode()})
    monkeypatch.setattr("pbprompt.model.calibration.opened", lambda folder: files)
    return tmp_path / "model"


def answers(path, count=80, *, familiar=1.0, label=None):
    chance = random.Random(0)
    rows = [
        {
            "image": f"{place}.jpg",
            "label": label or CLASSES[place % 2],
            "score": chance.uniform(0.5, 1),
            "familiarity": None if familiar is None else familiar * chance.random(),
        }
        for place in range(count)
    ]
    path.write_bytes(encode(rows, path.suffix))
    return path


def test_no_drift(run, folder, tmp_path):
    code, out, err = run("monitor", answers(tmp_path / "a.csv"), "--model", folder)
    assert code == 0, err
    assert "no drift: where nothing has changed, at most 1.0% of checks say drift" in out
    assert "80 answers, beside those at fit on 120 training images, each left out in turn" in err
    assert "least familiar" in out and "next:" not in err


def test_drift_is_said_with_the_least_familiar_and_the_next_step(run, folder, tmp_path):
    code, out, err = run(
        "monitor", answers(tmp_path / "a.jsonl", familiar=0.05), "--model", folder, "--show", 3
    )
    assert code == 1
    assert "look like none of the classes" in out and "drift: where" in out
    assert (
        len(out.partition("least familiar")[2].strip().splitlines()) == 4
    )  # the rest of the head, and three
    assert "next: pbprompt next UNLABELLED/ --model" in err
    code, out, _ = run("monitor", answers(tmp_path / "b.csv", label="bee"), "--model", folder, "--json")
    said = json.loads(out)
    assert code == 1 and said["drift"] and [one["drift"] for one in said["checks"]] == [False, False, True]
    assert said["classes"] == {"ant": {"at_fit": 0.5, "now": 0.0}, "bee": {"at_fit": 0.5, "now": 1.0}}
    least = [one["familiarity"] for one in said["least_familiar"]]
    assert len(least) == 10 and least == sorted(least)


def test_without_familiarity_the_rest_is_compared(run, folder, tmp_path):
    code, out, err = run("monitor", answers(tmp_path / "a.csv", familiar=None), "--model", folder)
    assert code == 0 and "not all was compared" in err and "least familiar" not in out


def test_what_cannot_be_compared(run, folder, tmp_path, monkeypatch):
    given = answers(tmp_path / "a.csv", label="cow")
    code, _, err = run("monitor", given, "--model", folder)
    assert code == 2 and "no answer of a class of" in err
    (tmp_path / "none.jsonl").write_text("")
    assert "no answer of a class of" in run("monitor", tmp_path / "none.jsonl", "--model", folder)[2]
    assert run("monitor", given, "--model", folder, "--error-rate", 0)[0] == 2
    monkeypatch.setattr("pbprompt.model.calibration.opened", lambda folder: ModelFiles(tmp_path, {}, {}))
    code, _, err = run("monitor", given, "--model", folder)
    assert code == 2 and f"{folder}: no such folder" in err
    folder.mkdir()
    code, _, err = run("monitor", given, "--model", folder)
    assert code == 2 and "no calibration.json in it" in err


def test_a_page_with_pictures_of_the_least_familiar(run, folder, tmp_path):
    table, page = answers(tmp_path / "a.csv", familiar=0.05), tmp_path / "drift.html"
    for place in range(80):
        Image.new("RGB", (40, 30), (place, 0, 0)).save(tmp_path / f"{place}.jpg")
    words = ("monitor", table, "--model", folder, "--show", 3)
    code, out, err = run(*words, "--html", page, "--root", tmp_path)
    text = page.read_text(encoding="utf-8")
    assert code == 1 and "drift" in out and f"wrote {page}" in err
    assert text.count('<img src="data:image/jpeg') == 3 and "look like none of the classes" in text
    assert "Images in use: drift" in text
    (tmp_path / "none").mkdir()
    assert run(*words, "--html", page, "--root", tmp_path / "none")[0] == 1  # they are gone: names remain
    assert "<img" not in page.read_text(encoding="utf-8") and ".jpg" in page.read_text(encoding="utf-8")
    code, _, err = run(*words, "--root", tmp_path)
    assert code == 2 and "it is for --html" in err
