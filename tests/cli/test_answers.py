"""Answers as files."""

import csv
import json

import pytest

from pbprompt.cli import answers
from pbprompt.cli.answers import check_answers, write_answers
from pbprompt.errors import InputError

RECORDS = [
    {
        "image": 'a "b",é.jpg',
        "label": "cat",
        "score": 0.75,
        "spread": 0.0,
        "scores": {"cat": 0.75, "dog": 0.25},
        "spreads": {"cat": 0.0, "dog": 0.0},
        "entropy": 0.5,
        "epistemic": 0.0,
        "unsure": None,
        "prediction_set": ["cat", "dog"],
        "familiarity": None,
        "unknown": False,
    },
]


def test_json_lines(tmp_path):
    write_answers(tmp_path / "a.jsonl", RECORDS * 2)
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == RECORDS * 2


def test_csv(tmp_path):
    write_answers(tmp_path / "new" / "a.CSV", RECORDS * 2)
    with (tmp_path / "new" / "a.CSV").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == list(RECORDS[0]) and first == second
    assert first["image"] == RECORDS[0]["image"] and float(first["score"]) == 0.75
    assert json.loads(first["scores"]) == RECORDS[0]["scores"]
    assert json.loads(first["prediction_set"]) == ["cat", "dog"]
    assert (first["unsure"], first["unknown"]) == ("", "false")


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_answers(tmp_path / "a.parquet", RECORDS * 2)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == RECORDS * 2
    assert str(table.schema.field("unsure").type) == "bool"
    assert str(table.schema.field("familiarity").type) == "double"


def test_what_cannot_be_written_is_told_before(tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    for name, says in (("a.txt", "ends in .csv, .jsonl, .parquet"), ("folder.csv", "is a folder")):
        with pytest.raises(InputError, match=says):
            check_answers(tmp_path / name)
    monkeypatch.setattr(answers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Parquet needs pyarrow: pip install .*\[parquet\]"):
        check_answers(tmp_path / "a.parquet")
    check_answers(tmp_path / "a.csv")
