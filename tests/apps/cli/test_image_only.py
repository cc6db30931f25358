"""An image tower without text, as a user meets it: what works, and what is refused in a sentence."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from dino_folder import dino_model, write_dino
from starlette.testclient import TestClient

import pbprompt
from pbprompt.apps.cli import main
from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.model import with_classes
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.sources import open_dataset

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """photos/, dino/ and model/, fitted with the default method."""
    home = tmp_path_factory.mktemp("home")
    for name in ("clock", "heart", "mammal"):
        (home / "photos" / name).mkdir(parents=True)
        for file in sorted((SAMPLE / name).iterdir())[:8]:
            shutil.copy(file, home / "photos" / name)
    write_dino(home / "dino", dino_model("dinov2"))
    words = ("fit", home / "photos", "--backbone", home / "dino", "--shots", "2", "--out", home / "model")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setenv("PBPROMPT_CACHE", str(home / "cache"))
        patch.setattr(sys, "argv", ["pbprompt", *map(str, words)])
        main()
    assert not stop.value.code
    return home


@pytest.fixture(autouse=True)
def same_cache(home, monkeypatch):
    monkeypatch.setenv("PBPROMPT_CACHE", str(home / "cache"))


def test_the_model_is_conjugate_by_photographs_alone(home):
    info = json.loads((home / "model" / "config.json").read_text())
    assert (info["method"], info["config"]["prior"]) == ("conjugate", "none")
    assert "zero_shot" not in info["metrics"] and set(info["metrics"]["rivals"]) == {
        "nearest-mean",
        "linear-probe",
        "nearest-neighbours",
    }
    card = (home / "model" / "README.md").read_text()
    assert "zero-shot" not in card and "a new class" not in card


def test_fit_says_that_names_count_for_nothing(run, home, tmp_path):
    words = ("fit", home / "photos", "--backbone", home / "dino", "--method", "gda", "--shots", "2")
    code, _, err = run(*words, "--dry-run", "--out", tmp_path / "m")
    assert code == 0 and "reads no text: class names count for nothing" in err


def test_predict_evaluate_look_and_next(run, home, tmp_path):
    code, out, err = run("predict", home / "photos", "--model", home / "model", "--json")
    assert code == 0 and len(out.splitlines()) == 24, err
    code, out, err = run("evaluate", home / "model", home / "photos", "--html", tmp_path / "page.html")
    assert code == 0 and "tuned" in out and "zero-shot" not in out, err
    assert "untuned backbone" not in (tmp_path / "page.html").read_text()
    code, out, err = run("look", home / "photos", "--backbone", home / "dino", "--json")
    assert code == 0 and json.loads(out)["images"] == 24, err
    code, _, err = run(
        "next", home / "photos", "--model", home / "model", "-n", "2", "-o", tmp_path / "n.csv"
    )
    assert code == 0 and (tmp_path / "n.csv").is_file(), err
    code, out, err = run(
        "explain", home / "photos/clock/1f550.webp", "--model", home / "model", "-o", tmp_path / "e.png"
    )
    assert code == 0 and "name +0.00" in out, err


def test_check_gives_the_accuracy_of_class_means(run, home, monkeypatch):
    few = open_dataset(home / "photos", held_out=OF_A_DRAW)  # the whole sample takes seconds
    monkeypatch.setattr("pbprompt.vision.images.sources.open_dataset", lambda name, held_out: few)
    code, out, err = run("backbones", "check", home / "dino")
    assert code == 0 and "zero-shot" not in out, err
    assert "class means on sample" in out and "none: classes are known by their images alone" in out
    assert "32 × 32, crop, bicubic, short side 36" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("predict", "photos", "--backbone", "dino", "--classes", "cat,dog"),
            "fit it to a few images of each",
        ),
        (
            ("predict", "photos", "--model", "model", "--classes", "zebra"),
            "or a backbone that reads class names",
        ),
        (("export", "model", "-o", "new.onnx", "--classes", "zebra"), "'zebra' is none of them"),
        (
            ("fit", "photos", "--backbone", "dino", "--method", "pbprompt", "-o", "new"),
            "use one of conjugate",
        ),
        (("fit", "photos", "--backbone", "dino", "--method", "zeroshot", "-o", "new"), "has nothing to tune"),
        (("fit", "photos", "--backbone", "dino", "--set", "prior=ensemble", "-o", "new"), "reads no text"),
        (("captions", "--model", "model", "--captions", "photos/captions.txt"), "reads no text"),
    ],
)
def test_what_reads_names_is_refused(run, home, monkeypatch, words, says):
    monkeypatch.chdir(home)
    (home / "photos" / "captions.txt").write_text("a clock\n")
    code, _, err = run(*words)
    assert code == 2 and says in err.splitlines()[-1] and not (home / "new").exists()


def test_a_server_says_what_predict_says(run, home):
    photo = home / "photos" / "mammal" / "1f408.webp"
    code, out, err = run("predict", photo, "--model", home / "model", "--json")
    assert code == 0, err
    with TestClient(create_app(TunedModel.load(home / "model")), "http://localhost") as client:
        answer = client.post("/predict", files=[("files", ("photo.webp", photo.read_bytes()))])
    assert answer.json()["predictions"][0]["scores"] == pytest.approx(json.loads(out)["scores"], abs=1e-5)


def test_a_server_takes_no_new_names(home):
    model = TunedModel.load(home / "model")
    with pytest.raises(Refused, match="takes no new names") as refused:
        with_classes(model, ["zebra"], Limits())
    assert refused.value.status == 409
