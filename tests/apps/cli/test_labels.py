"""Labels as the user has them, in and out, whatever name prompts read."""

import csv
import json

import pytest
from typer.testing import CliRunner

from pbprompt.apps.cli import app
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset

LABELS = {"clock": "SKU-17", "heart": "red_heart", "mammal": "mammal"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PBPROMPT_CACHE", str(tmp_path / "cache"))

    def call(*words):
        result = CliRunner().invoke(app, [*map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


@pytest.fixture
def photos(tmp_path):
    sample = open_dataset("sample")
    for name, label in LABELS.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        own = [item for item in sample.train if item.label == sample.classes.index(name)][:4]
        for place, item in enumerate(own):
            file = tmp_path / "photos" / label / f"{place}.webp"
            file.write_bytes(sample.file(item).read_bytes())
    return tmp_path / "photos"


def test_labels_in_and_out(run, photos, tmp_path):
    model, names = tmp_path / "model", tmp_path / "names.csv"
    names.write_text("SKU-17,clock\n")
    run("fit", photos, "--names", names, "--out", model)
    saved = TunedModel.load(model)
    assert saved.classes == ("SKU-17", "mammal", "red_heart")
    assert [*map(read_name, saved.classes)] == ["clock", "mammal", "red heart"]
    told = json.loads(run("predict", photos / "SKU-17" / "0.webp", "--model", model, "--json"))
    assert {*told["scores"]} == {"SKU-17", "mammal", "red_heart"}
    judged = json.loads(run("evaluate", model, photos, "--json"))  # by leaving out, though without --names
    assert judged["split"] == "left-out" and "SKU-17" in json.dumps(judged)
    run("next", photos, "--model", model, "-n", 3, "--out", tmp_path / "next.csv")
    with (tmp_path / "next.csv").open() as file:
        assert {row["suggested"] for row in csv.DictReader(file)} <= set(saved.classes)
    run("model", "rename", model, "SKU-17", "SKU-18")
    run("model", "rename", model, "red heart", "hearts")  # by the name to read
    run("model", "add", model, photos)  # red_heart is a class of its own by now
    assert TunedModel.load(model).classes == ("SKU-18", "mammal", "hearts", "SKU-17", "red_heart")


def test_what_was_fitted_with_names_is_known_again_however_it_is_called_since(run, photos, tmp_path):
    names = tmp_path / "names.csv"
    names.write_text("SKU-17,clock\n")
    for change in (("rename", "SKU-17", "clock"), ("merge", "SKU-17", "red_heart", "--into", "thing")):
        model = tmp_path / change[0]
        run("fit", photos, "--names", names, "--out", model)
        run("model", change[0], model, *change[1:])
        for given in ((), ("--names", names)):
            judged = json.loads(run("evaluate", model, photos, *given, "--json"))
            assert judged["split"] == "left-out" and change[-1] in judged["confusion"]["classes"]


def test_a_model_of_names_takes_labels_for_them(run, photos, tmp_path):
    """As models were saved before there were labels."""
    model = tmp_path / "model"
    run("fit", photos, "--out", model)
    plain = ("SKU 17", "mammal", "red heart")
    saved = TunedModel.load(model)
    before = saved.regrouped(dict(zip(saved.classes, plain, strict=True)))
    before.save(tmp_path / "before")
    assert TunedModel.load(tmp_path / "before").classes == plain
    judged = json.loads(run("evaluate", tmp_path / "before", photos, "--split", "all", "--json"))
    assert judged["images"] == 12 and judged["accuracy"] > 0.8
    run("model", "add", tmp_path / "before", photos)
    assert TunedModel.load(tmp_path / "before").classes == plain
