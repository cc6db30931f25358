"""A table to fill in, written and read back."""

import pytest

from pbprompt.errors import InputError
from pbprompt.findings.label_table import Row, read_table, write_table

ROWS = [Row('a, "b".jpg', "", "red panda", "0.5000", "0.9000"), Row("c.jpg", "cat", "dog", "0.4", "0.8")]


def test_there_and_back(tmp_path):
    write_table(tmp_path / "next.csv", ROWS)
    assert read_table(tmp_path / "next.csv") == ROWS


def test_a_spreadsheet_may_change_the_separator(tmp_path):
    path = tmp_path / "next.csv"
    path.write_text(
        "image;label;suggested;probability;score\nc.jpg; cat;dog;0.4;0.8\n\n", encoding="utf-8-sig"
    )
    assert read_table(path) == ROWS[1:]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image,label\na.jpg,cat\n", "choose another name"),
        ("", "choose another name"),
        ("image,label,suggested,probability,score\na.jpg,cat\n", "line 2: 5 fields"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    (tmp_path / "next.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        read_table(tmp_path / "next.csv")
