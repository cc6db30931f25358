"""The README's table is that of the study's summary."""

import json
from pathlib import Path

import pytest

from benchmarks.study.readme import BEGIN, END, ROWS, readme_table, write_readme
from pbprompt.errors import InputError

ROOT = Path(__file__).parents[3]
STUDY = json.loads((ROOT / "benchmarks/results/study-evidence.json").read_text(encoding="utf-8"))


def test_the_readme_has_the_studys_figures():
    assert f"{BEGIN}\n{readme_table(STUDY)}\n{END}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_row_is_one_of_the_study():
    assert ROWS.keys() <= STUDY["parts"]["few-shot"]["cells"].keys()


def test_cells():
    cells = {"accuracy": [0.5, 0.1], "nll": [1.25], "ece": [0.04]}
    study = {"parts": {"few-shot": {"cells": {"conjugate": {"average, 4 shots": cells}}}}}
    row = next(line for line in readme_table(study).splitlines() if "pbprompt fit" in line)
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["–", "50.00 / 1.250 / 4.0", "–", "yes"]


def test_only_what_stands_between_the_comments_is_replaced(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    write_readme(STUDY, page)
    assert page.read_text(encoding="utf-8") == f"above\n{BEGIN}\n{readme_table(STUDY)}\n{END}\nbelow\n"
    page.write_text("none", encoding="utf-8")
    with pytest.raises(InputError, match="needs the comments"):
        write_readme(STUDY, page)
