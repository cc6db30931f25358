"""The tables of `evaluate` in the terminal."""

from pathlib import Path

import numpy as np
import pytest

from pbprompt.apps.cli.figures import MOST_CLASSES, print_tables
from pbprompt.model.metrics.evaluation import Evaluation


@pytest.fixture
def printed(capsys, monkeypatch):
    """What is printed of two images of each class, the first of which is taken for the last class."""

    def call(classes, folder="", width=80):
        monkeypatch.setenv("COLUMNS", str(width))
        labels = np.repeat(np.arange(len(classes)), 2)
        rows = np.full((len(labels), len(classes)), 0.1 / (len(classes) - 1))
        rows[np.arange(len(labels)), labels] = 0.9
        rows[0] = rows[-1]
        paths = [f"{folder}{n}-of-these.png" for n in range(len(labels))]
        print_tables(Evaluation.of(rows, labels, classes, paths), Path("photos"))
        return capsys.readouterr().out

    return call


def test_few_classes_are_shown_whole_and_no_name_is_markup(printed):
    text = printed(["[red]cat", "dog", "cow"])
    assert "1 [red]cat  1  ·  1" in text and "3 cow       ·  ·  2" in text
    assert "1 of 2" in text and "0-of-these.png" in text and "photos" in text


def test_of_many_classes_the_weakest_are_shown_and_no_line_is_too_long(printed):
    names = [f"a class with a name of some length {n}" for n in range(MOST_CLASSES + 1)]
    text = printed(names, width=60)
    assert f"Weakest {MOST_CLASSES} of {MOST_CLASSES + 1} classes" in text and "Confusion" not in text
    assert all(len(line) <= 60 for line in text.splitlines() if "below photos" not in line)


def test_a_matrix_wider_than_the_terminal_is_left_out(printed):
    assert "Confusion" not in printed([f"c{n}" for n in range(10)], width=40)


def test_a_file_s_name_is_not_broken(printed):
    names = ["a class of a long name", "another class of a long name"]
    text = printed(names, folder="train/some folder/of a long name/")
    assert "…/0-of-these.png" in text or "…/of a long name/0-of-these.png" in text
