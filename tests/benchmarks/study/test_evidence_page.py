"""The page of the study of evidence, on summaries whose figures are made up."""

from benchmarks.study import __main__ as command
from benchmarks.study import page
from benchmarks.study.answers import answer, headline, where_it_loses
from benchmarks.study.parts import STUDIES, load_parts
from benchmarks.study.summary import cells_as_csv
from pbprompt.registry import find_method
from pbprompt.research.provenance import code_of

AHEAD = {"accuracy": [0.7, 0.01, 0.1, 0.05, 0.15], "nll": [1.2, 0.0, -0.2, -0.3, -0.1], "ece": [0.05, 0.0]}
FIRST = {"accuracy": [0.8, 0.01], "nll": [1.0, 0.0], "ece": [0.02, 0.0]}
UNKNOWN = {"auroc_none_of_these": [0.8, 0.0, 0.05, 0.02, 0.08]}
DOUBT = {"auroc_entropy": [0.7, 0.0], "auroc_mutual_information": [0.5, 0.0]}


def made():
    """Every row was run, and `conjugate` is ahead of each."""
    parts = {}
    for part in load_parts(study="evidence"):
        first, *others = [row.label for row in part.rows]
        columns = part.columns()
        cells = {row: {c.key: {"seeds": 3} | AHEAD | UNKNOWN | DOUBT for c in columns} for row in others}
        refused = {"auroc_none_of_these": [0.85, 0.0], "refused_known": [0.05, 0], "refused_new": [0.5, 0]}
        cells[first] = {c.key: {"seeds": 3} | FIRST | refused | DOUBT for c in columns}
        parts[part.name] = {
            "title": part.recipe.title,
            "task": part.recipe.task,
            "note": part.recipe.note,
            "rows": {row.label: row.method for row in part.rows},
            "columns": [[column.group, column.heading] for column in columns],
            "cells": cells,
            "versus": {},
            "planned": 10,
            "made": 9,
            "missing": {"LP++, tempered": ["every dataset at 16, seed 3"]},
        }
    return {"study": "evidence", "identity": IDENTITY, "notes": [], "parts": parts}


IDENTITY = {
    "runs": "",
    "count": 9,
    "left_out": 0,
    "seconds": 60,
    "finished": ["a", "b"],
    "resamples": 400,
    "draws": {"count": 3, "digest": "d"},
    **{key: {"one": 9, "other": 1} for key in ("machines", "commits", "library", "backbone", "data", "code")},
}


def test_the_headline_names_the_best_other_method_and_how_far_behind_it_is():
    study = made()
    cells = study["parts"]["few-shot"]["cells"]
    cells["LP++, tempered"]["average, 4 shots"]["nll"] = [1.1, 0, -0.1, -0.2, 0.1]
    del cells["conjugate"]["average, 16 shots"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in headline(study).splitlines()]
    assert rows[0] == ["", "1 shot", "4 shots", "16 shots"]
    assert [row[2] for row in rows[5:8]] == ["1.000", "LP++, tempered 1.100", "−0.100 [−0.200, +0.100]"]
    assert [row[3] for row in rows[2:4]] == ["not run", f"{next(iter(other_rows(study)))} 70.00"]


def other_rows(study):
    rows = study["parts"]["few-shot"]["rows"]
    return [row for row, method in rows.items() if method != "conjugate"]


def test_the_answer_has_a_sentence_for_each_task():
    assert answer(made()).count("\n") == 2


def test_losses_are_told_by_name_on_averages_and_counted_on_single_datasets():
    study = made()
    assert "Nowhere" in where_it_loses(study)
    cells = study["parts"]["few-shot"]["cells"]["nearest mean, tempered"]
    cells["Flowers102, 1 shot"]["accuracy"] = [0.9, 0, -0.1, -0.2, -0.05]
    assert where_it_loses(study).endswith("accuracy or NLL: 1 in few-shot")
    cells["average, 1 shot"]["accuracy"] = [0.9, 0, -0.1, -0.2, -0.05]
    assert where_it_loses(study).startswith(
        "- accuracy, average, 1 shot (few-shot): nearest mean, tempered **−10.00"
    )


def test_the_page_is_whole(tmp_path):
    page.write_page(made(), command.template_of("evidence"), tmp_path / "study.md")
    text = (tmp_path / "study.md").read_text()
    assert "{{" not in text and "(None" not in text and "nan" not in text
    assert "The runs are of an earlier `conjugate`" in text
    assert (tmp_path / "images" / "study-average-nll.svg").exists()


def test_the_page_says_whether_its_runs_are_of_the_present_code(tmp_path):
    study = made()
    study["identity"] = IDENTITY | {"code": {f"conjugate: {code_of(find_method('conjugate'))}": 9}}
    page.write_page(study, "{{code}}", tmp_path / "study.md")
    assert "as it is in this version" in (tmp_path / "study.md").read_text()
    for code, words in (("5, loop 1, code 0", "present revision"), ("1, loop 1", "earlier")):
        study["identity"] = IDENTITY | {"code": {f"conjugate: conjugate {code}": 9}}
        page.write_page(study, "{{code}}", tmp_path / "study.md")
        assert words in (tmp_path / "study.md").read_text()


def test_figures_of_former_runs_are_left_out():
    study = made()
    study["parts"]["few-shot"]["cells"]["linear probe"]["average, 1 shot"]["former"] = True
    kept = page.measured(study)["parts"]["few-shot"]["cells"]
    assert "linear probe" not in kept and "LDA, tempered" in kept


def test_every_cell_is_a_line_of_the_table():
    study = made()
    head, *lines = cells_as_csv(study).splitlines()
    cells = [
        cell for part in study["parts"].values() for row in part["cells"].values() for cell in row.values()
    ]
    assert len(lines) == sum(len(cell) - 1 for cell in cells) and head.count(",") == 9
    assert 'few-shot,linear probe,"average, 1 shot",nll,3,1.2,0.0,-0.2,-0.3,-0.1' in lines
    assert 'few-shot,conjugate,"average, 1 shot",ece,3,0.02,0.0,,,' in lines


def test_every_recipe_of_a_study_has_its_rows_compared_with_one_method():
    for study, first in (("prompts", "pbprompt"), ("evidence", "conjugate")):
        assert {part.rows[0].method for part in load_parts(study=study)} == {first}
    assert set(STUDIES["evidence"]) - {"untouched"} < set(STUDIES["prompts"])
