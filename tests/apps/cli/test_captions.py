"""`pbprompt research captions`, as a user runs it."""

import json
from pathlib import Path

import pytest

import pbprompt

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")
CAPTIONS = "a clock on the wall\na [red] heart of love\na furry mammal\n"


@pytest.fixture
def captions(tmp_path) -> Path:
    path = tmp_path / "captions.txt"
    path.write_text(CAPTIONS)
    return path


def test_json_lines(run, model, captions):
    options = ("--captions", captions, "--top-k", 2, "--samples", 3, "--json")
    code, out, err = run("captions", "--model", model, *options)
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert [(one["class"], one["prompt"]) for one in records] == [(c, k) for c in CLASSES for k in (1, 2, 3)]
    for one in records:
        nearest = one["captions"]
        assert len(nearest) == 2 and nearest[0]["cosine"] >= nearest[1]["cosine"]
        assert len(one["words"]) == 5 and all(word["text"] for word in one["words"])
        assert all(caption["text"] in CAPTIONS for caption in nearest)
    # each class's own caption comes first
    assert [one["captions"][0]["text"].split()[1:] for one in records[::3]] == [
        ["clock", "on", "the", "wall"],
        ["[red]", "heart", "of", "love"],
        ["furry", "mammal"],
    ]


def test_table_of_chosen_and_new_classes(run, model, captions):
    options = ("--captions", captions, "--class", "heart", "--class", "zebra", "--samples", 1)
    code, out, err = run("captions", "--model", model, *options)
    assert code == 0 and "added by name: zebra" in err
    assert "heart" in out and "zebra" in out and "clock  " not in out
    assert out.count("words") == 2  # a line for each prompt
    assert "a [red] heart of love" in out  # square brackets are text


def test_bad_captions_name_file_and_line(run, model, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text("fine\n" + "word " * 99)
    code, out, err = run("captions", "--model", model, "--captions", bad)
    assert code == 2 and "bad.txt:2" in err and not out and len(err.splitlines()) == 1
    code, _, err = run("captions", "--model", model, "--captions", tmp_path / "absent.txt")
    assert code == 2 and "absent.txt" in err and len(err.splitlines()) == 1
