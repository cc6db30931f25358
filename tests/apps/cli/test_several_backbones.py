"""Several backbones, as a user meets them: `lite`, and a tower without text that sees smaller squares."""

import json
import pickle
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from dino_folder import dino_model, write_dino
from starlette.testclient import TestClient

import pbprompt
from pbprompt.apps.classifier.prompt_classifier import PromptClassifier
from pbprompt.apps.cli import main
from pbprompt.apps.serve.app import create_app
from pbprompt.model import backbone_choice
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.images import open_image

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """photos/, dino/ and model/ of both backbones."""
    home = tmp_path_factory.mktemp("home")
    for name in ("clock", "heart", "mammal"):
        (home / "photos" / name).mkdir(parents=True)
        for file in sorted((SAMPLE / name).iterdir())[:4]:
            shutil.copy(file, home / "photos" / name)
    write_dino(home / "dino", dino_model("dinov2"))
    words = ("fit", home / "photos", *both(home), "--out", home / "model")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setenv("PBPROMPT_CACHE", str(home / "cache"))
        patch.setattr(sys, "argv", ["pbprompt", *map(str, words)])
        main()
    assert not stop.value.code
    return home


@pytest.fixture(autouse=True)
def same_cache(home, monkeypatch):
    monkeypatch.setenv("PBPROMPT_CACHE", str(home / "cache"))


def both(home: Path, place: str = "dino") -> tuple[object, ...]:
    return "--backbone", "lite", "--backbone", home / place


def test_a_file_a_stream_and_a_server_say_the_same(run, home, monkeypatch):
    photo = home / "photos" / "clock" / "1f550.webp"
    code, out, err = run("predict", photo, "--model", home / "model", "--json")
    assert code == 0, err
    scores = json.loads(out)["scores"]
    decoded = []
    monkeypatch.setattr(
        Decoder, "_one", lambda self, *of, plain=Decoder._one: decoded.append(of) or plain(self, *of)
    )
    [said] = PromptClassifier.from_pretrained(home / "model").predict_proba([open_image(photo)])
    assert len(decoded) == 1  # for both towers
    assert dict(zip(sorted(scores), said.tolist(), strict=True)) == pytest.approx(scores, abs=1e-5)
    with TestClient(create_app(TunedModel.load(home / "model")), "http://localhost") as client:
        answer = client.post("/predict", files=[("files", ("photo.webp", photo.read_bytes()))])
    assert answer.json()["predictions"][0]["scores"] == pytest.approx(scores, abs=1e-5)


def test_the_classifier_takes_a_list(home):
    paths = sorted(map(str, (home / "photos").glob("*/*")))
    names = [Path(path).parent.name for path in paths]
    classifier = PromptClassifier(backbone=["lite", home / "dino"]).fit(paths, names)
    features = classifier.encode(paths)
    assert features.shape == (12, classifier.model_.backbone.embed_dim)
    given = PromptClassifier(backbone=("lite", str(home / "dino"))).fit(7 * features, names)
    said = classifier.predict_proba(paths)
    np.testing.assert_allclose(given.predict_proba(features), said, atol=1e-4)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_allclose(again.predict_proba(paths), said, atol=1e-5)
    learned = given.partial_fit(features[:1], ["owl"])
    assert learned.classes_.tolist() == ["clock", "heart", "mammal", "owl"]
    alone = TunedModel.load(home / "model", ["lite", home / "dino"])
    assert alone.classes == ("clock", "heart", "mammal")
    assert PromptClassifier(backbone=home / "dino")._towers().config.name == str(home / "dino")


def test_verbs_work_as_with_one(run, home, tmp_path):
    photos, model = home / "photos", home / "model"
    code, out, err = run("evaluate", model, photos)
    assert code == 0 and "zero-shot" in out and "tuned" in out, err
    code, _, err = run("next", photos, "--model", model, "-n", "2", "-o", tmp_path / "n.csv")
    assert code == 0 and (tmp_path / "n.csv").is_file(), err
    code, out, err = run("explain", photos / "clock/1f550.webp", "--model", model, "-o", tmp_path / "e.png")
    assert code == 0 and "class mean (lite)" in out and "class mean (" in out.split("class mean (lite)")[1], (
        err
    )
    code, out, err = run("model", "add", model, photos, "--out", tmp_path / "more")
    assert code == 0, err
    code, out, err = run("model", "refit", model, "--yes", "--out", tmp_path / "again")
    assert code == 0 and "accuracy" in out, err
    assert (
        read(tmp_path / "again")["backbones"]
        == read(model)["backbones"]
        == read(tmp_path / "more")["backbones"]
    )
    (tmp_path / "captions.txt").write_text("a clock on a wall\na red heart\n")
    code, out, err = run("captions", "--model", model, "--captions", tmp_path / "captions.txt", "--top-k", 1)
    assert code == 0 and "a red heart" in out, err
    code, out, err = run(
        "predict", photos / "clock", "--model", model, "--classes", "red panda", "--together"
    )
    assert code == 0, err


def read(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def test_backbones_that_moved_or_changed_are_named(run, home, tmp_path):
    photo, model = home / "photos" / "clock" / "1f550.webp", tmp_path / "model"
    shutil.copytree(home / "model", model)
    about = read(model)
    about["backbones"][1]["name"] = str(tmp_path / "gone")
    (model / "config.json").write_text(json.dumps(about))
    code, _, err = run("predict", photo, "--model", model)
    assert code == 2 and "gone" in err
    code, _, err = run("predict", photo, "--model", model, *both(home))
    assert code == 0, err
    code, _, err = run("predict", photo, "--model", model, "--backbone", home / "dino")
    assert code == 2 and "give 2, in this order, not 1" in err
    write_dino(tmp_path / "other", dino_model("dinov2", seed=1))
    code, _, err = run("predict", photo, "--model", model, *both(tmp_path, "other"))
    assert code == 2 and "with other weights than these" in err


def test_streams_several_labels_names_alone_and_two_images(run, home, tmp_path):
    photos, out = home / "photos", tmp_path / "model"
    files = sorted(photos.glob("*/*"))
    rows = [f"{file},{file.parent.name}" for file in files]
    table = tmp_path / "labels.csv"
    table.write_text(
        "\n".join(["image,labels", *(f"{row}|{'warm' if at % 2 else 'cold'}" for at, row in enumerate(rows))])
    )
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for at, file in enumerate(files):
            tar.add(file, f"{at}.webp")
            (tmp_path / "cls").write_text(file.parent.name)
            tar.add(tmp_path / "cls", f"{at}.cls")
    names = ("--unlabelled", photos, "--classes", "clock,heart,mammal")
    two = tmp_path / "two"
    for file in (files[0], files[-1]):
        (two / file.parent.name).mkdir(parents=True)
        shutil.copy(file, two / file.parent.name)
    for words in ((table,), (tmp_path / "photos.tar",), names, (two,)):
        code, _, err = run("fit", *words, *both(home), "--out", out)
        assert code == 0, err
        code, told, err = run("predict", photos, "--model", out, "--json")
        assert code == 0 and len(told.splitlines()) == 12, err
        shutil.rmtree(out)


def test_auto_takes_the_cheapest_that_is_not_worse(run, home, tmp_path, monkeypatch):
    order: list[float] = []
    monkeypatch.setattr(backbone_choice, "seconds", lambda dataset, backbones: order)
    words = ("fit", home / "photos", *both(home), "--backbone", "auto")
    monkeypatch.setenv("COLUMNS", "300")
    order[:] = [0.002, 0.001, 0.003]
    code, _, err = run(*words, "--out", tmp_path / "a")
    kept = read(tmp_path / "a")["data"]["options"]["backbone"]
    shown = {
        " ".join(line.split("%")[0].split()[:-1]): line.split() for line in err.splitlines() if "%" in line
    }
    assert code == 0 and {"lite", str(home / "dino"), f"lite + {home / 'dino'}"} <= set(shown), err
    assert shown["lite"][-1] == "2.0" and kept == ["lite"]  # which names the drawings; the other is random
    assert f"auto: {' + '.join(kept)}" in err and len(read(tmp_path / "a").get("backbones", kept)) == len(
        kept
    )
    monkeypatch.setattr(backbone_choice, "behind", lambda best, other: (0.1, 0.0, 0.2))  # nobody can tell
    for name, order[:] in (("lite", [0.001, 0.002, 0.003]), (str(home / "dino"), [0.002, 0.001, 0.003])):
        code, _, err = run(*words, "--out", tmp_path / Path(name).name)
        assert code == 0 and read(tmp_path / Path(name).name)["data"]["options"]["backbone"] == [name], err
    one = tmp_path / "one"
    for name in ("clock", "heart"):
        (one / name).mkdir(parents=True)
        shutil.copy(next((home / "photos" / name).iterdir()), one / name)
    code, _, err = run("fit", one, *both(home), "--backbone", "auto", "--out", tmp_path / "both", "--dry-run")
    assert code == 0 and "nothing can be judged, since no class has two images: by all of them" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backbone", "lite", "--backbone", "lite"), "backbone lite is given twice: give it once"),
        (("--backbone", "lite", "--backbone", "nope"), "unknown backbone 'nope'"),
        (
            ("--backbone", "lite", "--backbone", "dino", "--method", "coop"),
            "coop sees by one backbone: give one",
        ),
        (("--backbone", "lite", "--backbone", "dino", "--set", "prior=none"), ""),
        (("--backbone", "lite", "--backbone", "auto"), "give two to 4 to choose from too"),
        (
            ("--backbone", "lite", "--backbone", "dino", "--backbone", "auto", "--method", "gda"),
            "for conjugate",
        ),
    ],
)
def test_what_cannot_be_is_refused(run, home, monkeypatch, words, says):
    monkeypatch.chdir(home)
    code, _, err = run("fit", "photos", *words, "--out", "new", "--dry-run")
    assert code == (2 if says else 0) and says in err.splitlines()[-1] and not (home / "new").exists()
