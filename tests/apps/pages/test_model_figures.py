"""A model's answers in the terminal and as files."""

import csv
import io

import numpy as np
from rich.console import Console

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.model_figures import MOST_CLASSES, terminal_tables, write_figures
from pbprompt.model.metrics.evaluation import Evaluation


def answers(classes):
    """Two images of each class; the first of the first class is taken for the last class."""
    labels = np.repeat(np.arange(len(classes)), 2)
    rows = np.full((len(labels), len(classes)), 0.1 / (len(classes) - 1))
    rows[np.arange(len(labels)), labels] = 0.9
    rows[0] = rows[-1]
    return Evaluation.of(rows, labels, classes, [f"{n}.png" for n in range(len(labels))])


def printed(said, root, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    for part in terminal_tables(said, root, width):
        console.print(part)
    return console.export_text()


def test_few_classes_are_shown_whole_and_no_name_is_markup(tmp_path):
    text = printed(answers(["[red]cat", "dog", "cow"]), tmp_path)
    assert "1 [red]cat  1  ·  1" in text and "3 cow       ·  ·  2" in text
    assert "1 of 2" in text and "0.png" in text and str(tmp_path) in text.replace("\n", "")


def test_of_many_classes_the_weakest_are_shown_and_no_line_is_too_long(tmp_path):
    names = [f"a class with a name of some length {n}" for n in range(MOST_CLASSES + 1)]
    text = printed(answers(names), tmp_path, width=60)
    assert f"Weakest {MOST_CLASSES} of {MOST_CLASSES + 1} classes" in text and "Confusion" not in text
    assert all(len(line) <= 60 for line in text.splitlines())


def test_a_matrix_wider_than_the_terminal_is_left_out(tmp_path):
    assert "Confusion" not in printed(answers([f"c{n}" for n in range(10)]), tmp_path, width=40)


def test_the_files_hold_tables_and_figures(tmp_path):
    names = write_figures(answers(["cat, striped", "dog"]), tmp_path / "made")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "made").iterdir())
    rows = list(csv.reader((tmp_path / "made" / "confusion.csv").open()))
    assert rows[1:] == [["cat, striped", "1", "1"], ["dog", "0", "2"]]
    first = next(csv.DictReader((tmp_path / "made" / "classes.csv").open()))
    assert (first["class"], first["recall"], first["precision"]) == ("cat, striped", "0.5", "1.0")
    assert {"confusion.svg", "confusion.png", "reliability.svg", "risk-coverage.svg"} < set(names)


def test_without_matplotlib_the_tables_are_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    assert write_figures(answers(["cat", "dog"]), tmp_path) == ["confusion.csv", "classes.csv"]
