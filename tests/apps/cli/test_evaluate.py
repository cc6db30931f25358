"""`pbprompt evaluate`: what it says of each class, as a user sees it, for programs, and as a page."""

import json
import shutil
from pathlib import Path

import pytest

import pbprompt


@pytest.fixture
def judged(run, model):
    """Evaluate the shared model on its photos."""
    return lambda *options: run("evaluate", model, model.parent / "photos", "--samples", "2", *options)


def test_one_run_prints_the_classes_and_writes_the_page_and_the_files(judged, model, tmp_path):
    code, out, err = judged("--split", "train", "--html", tmp_path / "r.html", "--figures", tmp_path / "made")
    assert code == 0, err
    assert "recall" in out and "heart" in out and "Confusion matrix" in out
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "train images of" in page and "lite is not CLIP" in page
    assert {"confusion.csv", "classes.csv"} < {path.name for path in (tmp_path / "made").iterdir()}
    assert f"wrote {tmp_path / 'r.html'}" in err and "--html FILE" not in err


def test_json_holds_what_the_tables_say(judged, model):
    code, out, _ = judged("--split", "train", "--json")
    said = json.loads(out)
    assert code == 0 and len(out.splitlines()) == 1
    right = sum(row[place] for place, row in enumerate(said["confusion"]["matrix"]))
    assert right / said["images"] == pytest.approx(said["accuracy"])
    assert [one["class"] for one in said["per_class"]] == said["confusion"]["classes"]
    for pair in said["confused_pairs"]:
        assert (model.parent / "photos" / pair["examples"][0]["path"]).is_file()
    assert said["risk_coverage"]["risk"][-1] == pytest.approx(1 - said["accuracy"])


def test_a_split_that_is_not_there_is_named(judged):
    code, _, err = judged("--split", "tset")
    assert code == 2 and "tset" in err


def test_other_classes_than_the_models_are_told(run, model, tmp_path):
    photos = model.parent / "photos"
    for old, new in (("clock", "clock"), ("heart", "heart shape")):
        shutil.copytree(photos / old, tmp_path / "others" / new)
    code, _, err = run(
        "evaluate", model, tmp_path / "others", "--samples", "2", "--html", tmp_path / "r.html"
    )
    says = (
        "known by name alone: heart shape; no possible answer here, since the data has no such class: heart"
    )
    assert code == 0 and f"note: {says}, mammal\n" in err
    assert says in (tmp_path / "r.html").read_text()


def test_a_folder_that_has_changed_may_test_on_what_was_trained_on(run, model, tmp_path):
    photos = shutil.copytree(model.parent / "photos", tmp_path / "photos")
    says = "images that it was fitted to may be among these"
    assert says not in run("evaluate", model, photos, "--samples", "2")[2]
    first = min((photos / "clock").iterdir())
    shutil.copy(first, first.with_name(f"again{first.suffix}"))
    code, _, err = run("evaluate", model, photos, "--samples", "2")
    assert code == 0 and "warning: photos is not as it was when the model was fitted" in err and says in err


def test_against_what_others_would_take(run, tmp_path):
    sample = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
    for name in ("clock", "heart", "mammal"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for file in sorted((sample / name).iterdir())[:12]:
            shutil.copy(file, tmp_path / "photos" / name)
    assert run("fit", tmp_path / "photos", "--out", tmp_path / "model")[0] == 0
    code, out, err = run("evaluate", tmp_path / "model", tmp_path / "photos", "--against")
    assert code == 0, err
    for name in ("linear probe", "logistic regression (CV)", "LDA", "k nearest", "SVM", "tuned"):
        assert f"\n{name}" in out


def test_against_other_images_is_refused_before_any_is_read(run, model, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    assert run("fit", model.parent / "photos", "--out", whole)[0] == 0
    aside = shutil.copytree(model.parent / "photos", tmp_path / "aside")
    min((aside / "clock").iterdir()).unlink()

    def encode(*given, **named):
        raise AssertionError("images were read")

    monkeypatch.setattr("pbprompt.vision.features.cache.FeatureCache.encode", encode)
    code, _, err = run("evaluate", whole, aside, "--against")
    assert code == 2 and "give the data that it was fitted to" in err and err.count("\n") == 1
