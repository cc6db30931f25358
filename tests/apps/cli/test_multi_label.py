"""Multi-label on the command line: fitted once to drawings, then asked in every way."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image
from scipy.stats import entropy

import pbprompt
from pbprompt.apps.cli import main
from pbprompt.apps.cli.methods import _tags
from pbprompt.registry import methods
from pbprompt.vision.images.tables import is_multi_label

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
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
    assert code == 0 and [set(line) for line in lines] == [{"image", "labels", "scores", "nothing"}] * 2
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


def test_the_report_has_figures_per_label_and_the_images_it_is_wrong_about(run, home, tmp_path):
    page = tmp_path / "report.html"
    code, _, err = run("evaluate", home / "model", home / "labels.csv", "--split", "train", "--html", page)
    text = page.read_text(encoding="utf-8")
    assert code == 0 and f"wrote {page}" in err
    assert "14 train images" in text and "names alone" in text and "Threshold" in text
    assert all(f'<th scope="row">{name}</th>' in text for name in CLASSES)
    assert ("missed" in text or "given wrongly" in text) == ("Mistakes" in text)


def test_next_chooses_by_doubt_summed_over_the_labels(run, home, tmp_path):
    folder, table = tmp_path / "more", tmp_path / "more" / "next.csv"
    folder.mkdir()
    for number in (0, 4, 8, 12, 16):
        shutil.copy(home / f"{number}.png", folder)
    words = ("next", folder, "--model", home / "model", "--by", "margin", "-o", table)
    code, out, err = run(*words, "-n", "3", "--json")
    chosen = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and "fill in its column `labels`" in err
    _, out, _ = run("predict", folder, "--model", home / "model", "--json")

    def doubt(scores):
        return sum(entropy([p, 1 - p]) for p in scores.values())

    said = {Path(one["image"]).name: one for one in map(json.loads, out.splitlines())}
    ranked = sorted(said, key=lambda name: -doubt(said[name]["scores"]))
    assert [one["image"] for one in chosen] == ranked[:3]
    for one in chosen:
        assert one["suggested"] == "|".join(said[one["image"]]["labels"])
        assert one["score"] == pytest.approx(doubt(said[one["image"]]["scores"]), abs=1e-3)
    with table.open() as lines:
        assert [row["labels"] for row in csv.DictReader(lines)] == ["", "", ""]
    code, _, _ = run(*words, "-n", "2")
    assert code == 0 and is_multi_label(table)
    code, _, err = run(
        "next", folder, "--model", home / "model", "--by", "epistemic", "-n", "1", "-o", "x.csv"
    )
    assert code == 2 and "no sampled classifiers" in err
    table.write_text("image,label,suggested,probability,score\n0.png,cat,,,\n")
    code, _, err = run(*words, "-n", "1")
    assert code == 2 and "has no column 'labels'" in err


def test_look_at_a_multi_label_table(run, home, tmp_path):
    lines = (home / "labels.csv").read_text().splitlines()
    shutil.copy(home / "1.png", home / "copy.png")  # of heart
    table = home / "more.csv"
    table.write_text("\n".join([*lines, "copy.png,clock|heart,test"]) + "\n")
    code, out, _ = run("look", table, "--json")
    found = json.loads(out)
    assert code == 0 and found["images"] == 22 and list(found["classes"]) == list(CLASSES)
    assert found["classes"]["heart"] == sum("heart" in line for line in lines) + 1
    pairs = {frozenset(one["image"] for one in group["images"]): group for group in found["duplicates"]}
    group = pairs[frozenset({"1.png", "copy.png"})]
    assert group["exact"] and group["across_classes"] and group["across_splits"]
    assert [one["labels"] for one in sorted(group["images"], key=lambda one: one["image"])] == [
        ["heart"],
        ["clock", "heart"],
    ]
    assert not found["overlaps"] and not found["outliers"] and "Multi-label" in found["notes"][-1]
    page = tmp_path / "look.html"
    code, out, _ = run("look", table, "--html", page)
    assert (
        code == 0
        and "of 3 labels" in out
        and "labelled in several ways: clock, heart; heart" in page.read_text()
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
        (("evaluate", "{m}", "{t}", "--figures", "{n}"), "--figures: .* no confusion matrix"),
        (("export", "{m}", "-o", "{n}.onnx"), "needs a single-label"),
        (("explain", "{i}", "--model", "{m}", "-o", "x.png"), "needs a single-label"),
        (("prompts", "--model", "{m}"), "needs a single-label"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_refused_in_a_sentence(run, home, tmp_path, words, why):
    places = {"t": "labels.csv", "m": "model", "i": "0.png", "h": "."}
    known = {key: home / place for key, place in places.items()} | {"n": tmp_path / "new"}
    code, out, err = run(*(word.format(**known) for word in words))
    assert code == 2 and not out and not list(tmp_path.glob("new*"))
    (line,) = err.strip().splitlines()
    assert re.search(why, line), line


def test_the_list_of_methods_says_who_can():
    assert [name for name, kind in methods().items() if "multi-label" in _tags(kind)] == ["conjugate"]
