"""A model's answers in the terminal and as files."""

import csv

import numpy as np

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.model_figures import write_figures
from pbprompt.model.metrics.evaluation import Evaluation


def answers(classes):
    """Two images of each class; the first of the first class is taken for the last class."""
    labels = np.repeat(np.arange(len(classes)), 2)
    rows = np.full((len(labels), len(classes)), 0.1 / (len(classes) - 1))
    rows[np.arange(len(labels)), labels] = 0.9
    rows[0] = rows[-1]
    return Evaluation.of(rows, labels, classes, [f"{n}.png" for n in range(len(labels))])


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
