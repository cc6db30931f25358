"""`pbprompt model`: photographs and classes that come, change and go."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pbprompt
from pbprompt.apps.batch import BatchJob, answers
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.stream import Stream

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


def copied(place: Path, names, files=slice(0, 8)) -> Path:
    for name in names:
        (place / name).mkdir(parents=True, exist_ok=True)
        for file in sorted((SAMPLE / name).iterdir())[files]:
            shutil.copy(file, place / name)
    return place


@pytest.fixture
def model(run, tmp_path) -> Path:
    photos = copied(tmp_path / "photos", ("clock", "heart", "mammal"))
    code, _, err = run("fit", photos, "--out", tmp_path / "model")
    assert code == 0, err
    return tmp_path / "model"


def said_of(folder: Path) -> list[dict[str, float]]:
    files = sorted((SAMPLE / "mammal").iterdir())[8:12]
    return [one.said.scores for one in answers(BatchJob.of(TunedModel.load(folder), Stream(files)))]


def test_add_photographs_of_known_and_new_classes(run, model, tmp_path):
    more = copied(tmp_path / "more", ("heart", "bird"), slice(8, 14))
    code, out, err = run("model", "add", model, more)
    assert code == 0, err
    assert "added 12 photographs of bird, heart; new: bird" in out + err
    assert "before: 3 classes, accuracy" in out + err and "now: 4 classes, accuracy" in out + err
    changed = TunedModel.load(model)
    assert changed.classes == ("clock", "heart", "mammal", "bird") and changed.calibrated
    assert changed.info.data.changes == ("added 12 photographs of bird, heart; new: bird",)
    alone = copied(tmp_path / "alone", ("bug",))  # a single class is enough
    code, out, err = run("model", "add", model, alone, "--out", tmp_path / "other")
    assert code == 0 and TunedModel.load(tmp_path / "other").classes[-1] == "bug"
    assert TunedModel.load(model).classes == changed.classes


def test_keep_a_class_by_its_name(run, model):
    code, out, err = run("model", "add", model, "--name", "red panda")
    assert code == 0 and "known by name: red panda" in out
    assert TunedModel.load(model).classes[-1] == "red panda"
    code, out, err = run("model", "add", model, "--name", "clock")
    assert code == 2 and "class 'clock' is there already" in out + err


def test_regrouped_as_if_fitted_so(run, model, tmp_path):
    """Merged, renamed and removed classes: the model is the one of folders that are so."""
    code, out, err = run("model", "merge", model, "clock", "heart", "--into", "thing")
    assert code == 0 and "merged clock, heart into thing" in out + err
    assert TunedModel.load(model).classes == ("thing", "mammal")
    dataset = pbprompt.open_dataset(tmp_path / "photos")
    train = [dataset.root / item.path for item in dataset.train]
    labels = ["mammal" if path.parent.name == "mammal" else "thing" for path in train]
    again = pbprompt.PromptClassifier().fit(train, labels)
    files = sorted((SAMPLE / "mammal").iterdir())[8:12]
    expected = again.predict_proba(files)  # mammal, thing
    for row, scores in zip(expected, said_of(model), strict=True):
        assert [scores["mammal"], scores["thing"]] == pytest.approx(row.tolist(), abs=1e-4)
    code, out, err = run("model", "remove", model, "thing")
    assert code == 2 and "fewer than two classes would be left" in out + err
    assert TunedModel.load(model).classes == ("thing", "mammal")


def test_remove_and_rename(run, model, tmp_path):
    assert run("model", "remove", model, "heart")[0] == 0
    assert run("model", "rename", model, "clock", "watch")[0] == 0
    assert TunedModel.load(model).classes == ("watch", "mammal")
    dataset = pbprompt.open_dataset(tmp_path / "photos")
    train = [dataset.root / item.path for item in dataset.train if "heart" not in item.path]
    again = pbprompt.PromptClassifier().fit(train, [path.parent.name for path in train])
    again = pbprompt.PromptClassifier(class_names={"clock": "watch", "mammal": "mammal"}).fit(
        train, [path.parent.name for path in train]
    )
    files = sorted((SAMPLE / "mammal").iterdir())[8:12]
    for row, scores in zip(again.predict_proba(files), said_of(model), strict=True):
        assert list(scores.values()) == pytest.approx(row.tolist(), abs=1e-4)
    code, out, err = run("model", "rename", model, "clok", "x")
    assert code == 2 and "class 'clok' is none of the model's" in out + err


def test_refit_from_the_same_sources(run, model, tmp_path, monkeypatch):
    before = json.loads((model / "config.json").read_text())
    assert before["data"]["options"] == {"data": str(tmp_path / "photos")}
    copied(tmp_path / "photos", ("heart", "bird"), slice(8, 16))
    assert run("model", "add", model, "--name", "otter")[0] == 0
    monkeypatch.chdir(tmp_path.parent)
    code, out, err = run("model", "refit", model)
    assert code == 2 and f"names as its data: '{tmp_path / 'photos'}': add --yes to read" in err
    (tmp_path / ".model.refit").mkdir()  # as a kill leaves it
    (tmp_path / ".model.refit" / "half").write_bytes(b"half")
    code, out, err = run("model", "refit", model, "--yes")
    assert code == 0, err
    assert "not in the new model: known by name: otter" in out and "before: 4 classes" in out
    assert [line for line in err.splitlines() if "saved" in line] == [f"saved: {model}"]
    after = json.loads((model / "config.json").read_text())
    assert after["classes"] == ["bird", "clock", "heart", "mammal"] and "changes" not in after["data"]
    assert after["data"]["options"] == before["data"]["options"]
    assert not list(tmp_path.glob(".*refit*"))


def edited(model: Path, **changes) -> None:
    """The config as whoever hands the model on could have written it."""
    config = json.loads((model / "config.json").read_text())
    for place, value in changes.items():
        at = config
        *path, last = place.split("__")
        for key in path:
            at = at.setdefault(key, {})
        at[last] = value
    (model / "config.json").write_text(json.dumps(config))


def test_a_model_of_others_writes_nothing_fetches_nothing_and_allows_nothing(run, model, tmp_path):
    evil, profile = copied(tmp_path / "evil", ("bird",), slice(0, 4)), tmp_path / "profile"
    profile.write_text("mine")
    named = {"pseudo_labels": str(profile), "unlabelled": [str(evil)], "allow_urls": True, "out": str(evil)}
    edited(model, data__options={**named, "data": str(tmp_path / "photos"), "dry_run": True})
    code, _, err = run("model", "refit", model)
    assert code == 2 and str(evil) in err and "add --yes" in err and profile.read_text() == "mine"
    code, _, err = run("model", "refit", model, "--yes", "--out", tmp_path / "new")
    assert code == 0 and profile.read_text() == "mine" and (tmp_path / "new").is_dir()
    assert "pseudo_labels" not in TunedModel.load(tmp_path / "new").info.data.options
    (model / "own.csv").write_text(f"image,label\n{evil / 'bird' / 'x.png'},a\n")  # a table leads out of it
    edited(model, data__options={"data": str(model / "own.csv")})
    code, _, err = run("model", "refit", model)
    assert code == 2 and "own.csv" in err and "add --yes" in err
    edited(model, data__options={"data": "http://127.0.0.1:9/x.tar", "allow_urls": True})
    code, _, err = run("model", "refit", model, "--yes")
    assert code == 2 and "add --allow-urls" in err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"classes": []}, "no classes"),
        ({"seed": "NaN"}, "'seed' is 'NaN'"),
        ({"metrics__accuracy": "<b>"}, "not a model of pbprompt"),
        ({"metrics__zero_shot": 5}, "not a model of pbprompt"),
        ({"data__changes": 5}, "field 'data.changes' is"),
        ({"data__changes": [5]}, "field 'data.changes' is"),
        ({"data__options": 5}, "field 'data.options' is"),
        ({"data__options__seed": "NaN"}, "'seed' is 'NaN'"),
        ({"data__options__hold_out": float("nan")}, "'hold_out' is nan"),
        ({"data__options__shots": -5}, "'shots' is -5"),
        ({"temperature": 1e-320}, "temperature is 1e-320"),
        ({"data__options__root": 5}, "'root' is 5"),
        ({"data__options__unlabelled": "x"}, "'unlabelled' is 'x'"),
        ({"data__options__data": "a\0b"}, "a\\x00b"),
    ],
)
def test_a_config_that_somebody_wrote_is_refused_in_a_sentence(run, model, changes, says):
    edited(model, **changes)
    code, _, err = run("model", "refit", model)
    assert code == 2 and says in err and len(err.splitlines()) == 1


def test_what_a_model_says_is_written_out_where_a_terminal_would_obey_it(run, model, tmp_path):
    options = {"data": str(tmp_path / "photos")}
    edited(model, data__changes=["\x1b[2Jgone\u202e"], data__options=options)
    code, out, err = run("model", "refit", model, "--yes", "--out", tmp_path / "new")
    assert code == 0 and "\\u001b[2Jgone\\u202e" in out and not {"\x1b", "\u202e"} & {*out, *err}
    edited(model, data__options={"data": "\x1b[31mphotos\u202e"}, data__test_images=3)
    new = copied(tmp_path / "more", ("bird",), slice(0, 4))
    code, out, err = run("model", "add", model, new, "--out", tmp_path / "newer")
    assert code == 0 and "\\u001b[31mphotos\\u202e" in err and not {"\x1b", "\u202e"} & {*out, *err}


def test_two_changes_at_once_are_both_made(run, model, tmp_path):
    """The second waits for the first, and changes what that made."""
    folders = [copied(tmp_path / name, (name,)) for name in ("bird", "bug", "hand")]
    command = [sys.executable, "-m", "pbprompt", "model", "add", str(model)]
    several = [subprocess.Popen([*command, str(folder)]) for folder in folders]
    assert [one.wait(120) for one in several] == [0, 0, 0]
    assert set(TunedModel.load(model).classes) == {"clock", "heart", "mammal", "bird", "bug", "hand"}
    out = [*command, str(copied(tmp_path / "tool", ("tool",))), "--out", str(tmp_path / "new")]
    both = [subprocess.Popen(out, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(one.wait(120) for one in both) == [0, 2]  # nobody's model is written over


def test_what_cannot_be_changed_stays(run, tmp_path):
    photos = copied(tmp_path / "photos", ("clock", "heart"))
    assert run("fit", photos, "--method", "nearest-mean", "--out", tmp_path / "model")[0] == 0
    held = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    for command in (["add", photos], ["rename", "clock", "x"]):
        code, out, err = run("model", command[0], tmp_path / "model", *command[1:])
        assert code == 2 and "fit it again" in out + err
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == held
