"""`pbprompt research prompts`, as a user runs it."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import pbprompt

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")


def test_likeness_and_words_as_json(run, model):
    code, out, err = run("prompts", "--model", model, "--words", 2, "--samples", 3, "--json")
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert [one["class"] for one in records] == list(CLASSES)
    for one in records:
        assert -1 <= one["cosine"] < 1
        assert len(one["words"]) == 3 and all(len(sample) == 5 for sample in one["words"])
        # the words that the prompt started from, hardly moved by one epoch
        assert [token[0][0] for token in one["words"][0]][1:] == ["a", "photo", "of", "a"]


def test_table_of_chosen_classes(run, model):
    code, out, _ = run("prompts", "--model", model, "--class", "heart", "--samples", 2)
    assert code == 0 and "heart" in out and "clock" not in out and "photo" in out


def test_a_method_without_learned_tokens_and_with_one_prompt(run, model, tmp_path):
    photos = model.parent / "photos"
    other = tmp_path / "other"
    assert run("fit", photos, "--method", "nearest-mean", "--shots", 2, "--out", other)[0] == 0
    code, out, err = run("prompts", "--model", other)
    assert code == 0 and "no words: nearest-mean has no token embeddings" in err and "one prompt" in out


def test_the_map_as_picture_and_as_numbers(run, model, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--images", model.parent / "photos", "--per-class", 2, "--words", 0)
    code, _, err = run("prompts", "--model", model, "--map", tmp_path / "map.csv", *options)
    assert code == 0, err
    with (tmp_path / "map.csv").open() as file:
        rows = list(csv.DictReader(file))
    kinds = [(row["kind"], row["class"]) for row in rows]
    assert all(kinds.count(("prompt", name)) == 4 for name in CLASSES)
    assert all(1 <= kinds.count(("image", name)) <= 2 for name in CLASSES)
    code, _, err = run("prompts", "--model", model, "--map", tmp_path / "map.png", *options)
    assert code == 0, err
    with Image.open(tmp_path / "map.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


def test_images_of_other_classes_are_refused(run, model, tmp_path):
    other = tmp_path / "strangers" / "zebra"
    other.mkdir(parents=True)
    for file in sorted((SAMPLE / "mammal").iterdir())[:4]:
        shutil.copy(file, other)
    shutil.copytree(other, other.parent / "lion")
    code, _, err = run("prompts", "--model", model, "--map", tmp_path / "m.csv", "--images", other.parent)
    assert code == 2 and "has no image of clock" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--map", "map.gif"), "--map map.gif"), (("--images", "x"), "give --map")],
)
def test_bad_options_are_one_line(run, tmp_path, options, says):
    code, out, err = run("prompts", "--model", tmp_path, *options)
    assert code == 2 and says in err and not out and len(err.splitlines()) == 1
