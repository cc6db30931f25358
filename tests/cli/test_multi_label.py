"""Multi-label on the command line: fitted once to drawings, then asked in every way."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

import pbprompt
from pbprompt.cli import main
from pbprompt.cli.methods import _tags
from pbprompt.registry import methods

SAMPLE = Path(pbprompt.__file__).parent / "data" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")
COLLAGES = ("clock|heart", "heart", "mammal|clock", "mammal", "", "clock", "heart|mammal")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Drawings side by side, a table of what is on them, and a model fitted to it."""
    home = tmp_path_factory.mktemp("home")
    drawings = {name: sorted((SAMPLE / name).iterdir()) for name in CLASSES}
    lines = ["image,labels,split"]
    for number in range(21):
        cell = COLLAGES[number % len(COLLAGES)]
        canvas = Image.new("RGB", (128, 128), "white")
        for place, name in enumerate(filter(None, cell.split("|"))):
            drawing = Image.open(drawings[name][number % len(drawings[name])]).convert("RGB")
            canvas.paste(drawing.resize((64, 64)), (64 * place, 32))
        canvas.save(home / f"{number}.png")
        lines.append(f"{number}.png,{cell},{'train' if number < 14 else 'test'}")
    (home / "labels.csv").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setenv("PBPROMPT_CACHE", str(home / "cache"))
        patch.setattr(
            sys, "argv", ["pbprompt", "fit", str(home / "labels.csv"), "--out", str(home / "model")]
        )
        main()
    assert not stop.value.code
    return home


@pytest.fixture(autouse=True)
def shared_cache(home, monkeypatch):
    monkeypatch.setenv("PBPROMPT_CACHE", str(home / "cache"))


def test_the_folder_says_what_it_is(home):
    info = json.loads((home / "model" / "config.json").read_text())
    assert info["multi_label"] and info["method"] == "conjugate" and info["classes"] == list(CLASSES)
    assert info["metrics"]["images"] == 7
    names = {path.name for path in (home / "model").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors"}


def test_a_dry_run_writes_nothing(run, home, tmp_path):
    code, _, err = run("fit", home / "labels.csv", "--out", tmp_path / "m", "--dry-run")
    assert (
        code == 0 and "dry run" in err and "14 train, 0 val, 7 test" in err and not (tmp_path / "m").exists()
    )


def test_predict_in_every_form(run, home, tmp_path):
    pytest.importorskip("pyarrow")
    images = [home / "0.png", home / "4.png"]
    code, out, _ = run("predict", *images, "--model", home / "model", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [set(line) for line in lines] == [{"image", "labels", "scores"}] * 2
    assert "clock" in lines[0]["labels"] and set(lines[0]["scores"]) == set(CLASSES)
    assert sum(lines[0]["scores"].values()) != pytest.approx(1)

    code, out, _ = run("predict", *images, "--model", home / "model")
    assert code == 0 and "labels" in out.splitlines()[0] and ", ".join(lines[0]["labels"]) in out
    for suffix in ("csv", "jsonl", "parquet"):
        code, _, err = run("predict", *images, "--model", home / "model", "--out", tmp_path / f"a.{suffix}")
        assert code == 0 and "2 answers" in err
    (first, _) = csv.DictReader((tmp_path / "a.csv").open())
    assert first["labels"] == "|".join(lines[0]["labels"])  # as `fit` reads them
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0]) == lines[0]
    from pyarrow import parquet

    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == lines


def test_an_unreadable_image_is_told_of(run, home, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    code, out, err = run("predict", tmp_path / "bad.png", home / "0.png", "--model", home / "model", "--json")
    assert code == 1 and len(out.splitlines()) == 1 and "1 of 2 images could not be read" in err


def test_evaluate_in_text_and_as_json(run, home):
    code, out, _ = run("evaluate", home / "model", home / "labels.csv", "--json")
    figures = json.loads(out)
    metrics = json.loads((home / "model" / "config.json").read_text())["metrics"]
    assert code == 0 and {key: figures[key] for key in metrics} == metrics
    assert {"map", "micro", "macro", "zero_shot_map", "labels", "thresholds"} < set(figures)
    code, out, _ = run("evaluate", home / "model", home / "labels.csv", "--split", "train")
    assert (
        code == 0
        and "train split, 14 images" in out
        and all(name in out for name in ("names alone", *CLASSES))
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("fit", "{t}", "--shots", "3", "-o", "{n}"), "--shots: .* is multi-label"),
        (("fit", "{t}", "--calibrate", "-o", "{n}"), "--calibrate: .* is multi-label"),
        (("fit", "{t}", "--method", "coop", "-o", "{n}"), "coop is single-label: .* use conjugate"),
        (
            ("predict", "{i}", "--model", "{m}", "--coverage", "0.9"),
            "--coverage: .* is multi-label",
        ),
        (
            ("predict", "{i}", "--model", "{m}", "--classes", "cat"),
            "--classes: .* is multi-label",
        ),
        (("evaluate", "{m}", "sample"), "give a table with a column 'labels'"),
        (("export", "{m}", "-o", "{n}"), "needs a single-label"),
        (("explain", "{i}", "--model", "{m}", "-o", "x.png"), "needs a single-label"),
        (("prompts", "--model", "{m}"), "needs a single-label"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_refused_in_a_sentence(run, home, tmp_path, words, why):
    places = {"t": "labels.csv", "m": "model", "i": "0.png", "h": "."}
    known = {key: home / place for key, place in places.items()} | {"n": tmp_path / "new"}
    code, out, err = run(*(word.format(**known) for word in words))
    assert code == 2 and not out and not (tmp_path / "new").exists()
    (line,) = err.strip().splitlines()
    assert re.search(why, line), line


def test_the_list_of_methods_says_who_can():
    assert [name for name, kind in methods().items() if "multi-label" in _tags(kind)] == ["conjugate"]
