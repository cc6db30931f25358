"""A table to fill in, written and read back."""

import pytest

from pbprompt.errors import InputError
from pbprompt.findings.label_table import Row, name_in_table, read_table, table_root, write_table

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


def test_names_are_relative_to_the_table_or_to_the_folder_and_links_keep_theirs(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (tmp_path / "elsewhere.png").touch()
    (folder / "link.png").symlink_to(tmp_path / "elsewhere.png")
    for table, name in ((tmp_path / "t.csv", "photos/link.png"), (tmp_path / "other" / "t.csv", "link.png")):
        root = table_root(folder, table)
        assert name_in_table(folder / "link.png", folder, root) == name and (root / name).exists()
