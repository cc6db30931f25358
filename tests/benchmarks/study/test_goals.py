"""The goals of the study of evidence, on summaries whose figures are made up."""

import pytest

from benchmarks.study import __main__ as command
from benchmarks.study import page
from benchmarks.study.answers import answer, headline
from benchmarks.study.goals import goals
from benchmarks.study.parts import STUDIES, load_parts

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
            "missing": {"CLAP": ["every dataset at 16, seed 3"]},
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


def verdict(study, start):
    (found,) = [goal for goal in goals(study) if goal.text.startswith(start)]
    return found.verdict


def test_goals_are_met_where_every_interval_leaves_out_zero():
    assert {goal.verdict for goal in goals(made())} == {"met"}
    assert len(list(goals(made()))) == 15


@pytest.mark.parametrize(
    ("part", "row", "column", "change", "start", "said"),
    [
        ("few-shot", "GDA", "average, 4 shots", {"nll": [1, 0, 0.2, 0.1, 0.3]}, "NLL lower", "NOT met"),
        ("few-shot", "GDA", "average, 4 shots", {"nll": [1, 0, -0.2, -0.5, 0.1]}, "NLL lower", "not shown"),
        ("few-shot", "GDA", "average, 4 shots", {"nll": [1, 0, -0.2]}, "NLL lower", "not shown"),
        ("few-shot", "conjugate", "average, 4 shots", {"ece": [0.031, 0]}, "ECE", "NOT met"),
        ("base-to-new", "conjugate", "average, H", {"accuracy": [0.64, 0]}, "H of", "NOT met"),
        (
            "base-to-new",
            "LP++",
            "average, Joint",
            {"auroc_none_of_these": [0.9, 0, -0.05, -0.08, -0.02]},
            "AUROC",
            "NOT met",
        ),
        (
            "base-to-new",
            "PBPrompt",
            "OxfordPets, Joint",
            {"accuracy": [0.9, 0, -0.1, -0.2, -0.05]},
            "Accuracy under",
            "NOT met",
        ),
        (
            "domain-shift",
            "zero-shot",
            "PACS sketch",
            {"accuracy": [0.9, 0, -0.1, -0.2, 0.05]},
            "Not below",
            "not shown",
        ),
    ],
)
def test_a_goal_falls_with_its_figure(part, row, column, change, start, said):
    study = made()
    study["parts"][part]["cells"][row][column] |= change
    if start == "NLL lower":
        start = "NLL lower than every other method's, 4"
    assert verdict(study, start) == said


def test_a_method_that_was_not_run_leaves_a_goal_open_and_is_named():
    study = made()
    del study["parts"]["few-shot"]["cells"]["CLAP"]
    (one,) = [goal for goal in goals(study) if goal.text.endswith("1 shot") and "Accuracy" in goal.text]
    assert one.verdict == "not shown" and "not run: CLAP" in one.figures


def test_the_headline_names_the_best_other_method_and_how_far_behind_it_is():
    study = made()
    study["parts"]["few-shot"]["cells"]["CLAP"]["average, 4 shots"]["nll"] = [1.1, 0, -0.1, -0.2, 0.1]
    del study["parts"]["few-shot"]["cells"]["conjugate"]["average, 8 shots"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in headline(study).splitlines()]
    assert rows[0] == ["", "1 shot", "2 shots", "4 shots", "8 shots", "16 shots"]
    assert [row[3] for row in rows[5:8]] == ["1.000", "CLAP 1.100", "−0.100 [−0.200, +0.100]"]
    assert [row[4] for row in rows[2:4]] == ["not run", "PBPrompt 70.00"]


def test_the_answer_has_a_sentence_for_each_task_and_names_who_is_better():
    study = made()
    assert answer(study).count("\n") == 3
    assert "No other method is better" in answer(study)
    cell = study["parts"]["few-shot"]["cells"]["nearest mean"]["Flowers102, 1 shot"]
    cell["accuracy"] = [0.9, 0, -0.1, -0.2, -0.05]
    assert "zero in accuracy on Flowers102, 1 shot (few-shot): nearest mean." in answer(study)


def test_the_page_is_whole(tmp_path):
    page.write_page(made(), command.template_of("evidence"), tmp_path / "study.md")
    text = (tmp_path / "study.md").read_text()
    assert "{{" not in text and "(None" not in text and "nan" not in text
    assert "| all | 54 | 6 |" in text and "9 on one; 1 on other" in text
    assert "85.0 ± 0.0 / 5.0 / 50.0" in text and "80.0 ± 0.0↓ / – / –" in text
    assert (tmp_path / "images" / "study-average-nll.svg").exists()


def test_every_recipe_of_a_study_has_its_rows_compared_with_one_method():
    for study, first in (("prompts", "pbprompt"), ("evidence", "conjugate")):
        assert {part.rows[0].method for part in load_parts(study=study)} == {first}
    assert set(STUDIES["evidence"]) - {"untouched"} < set(STUDIES["prompts"])
