"""The page about one model: whole in itself, no name taken as markup, and true to the answers."""

import csv
import re

import numpy as np
import pytest
from PIL import Image

from pbprompt.apps.pages import model_page, plots
from pbprompt.apps.pages.model_page import (
    MOST_CLASSES,
    MOST_IN_MATRIX,
    findings,
    write_figures,
    write_model_page,
)
from pbprompt.model.metrics.evaluation import Evaluation

HOSTILE = "<script>alert('x')</script> & \"q\""
FIGURES = {"accuracy": 0.75, "macro_f1": 0.7, "nll": 1.25, "ece": 0.1}


def answers(classes, wrong=((0, 1),), each=4, path="{}.png"):
    """`each` images of every class, all right but one of each pair (true, taken for)."""
    labels = np.repeat(np.arange(len(classes)), each)
    said = labels.copy()
    for true, taken_for in wrong:
        said[true * each] = taken_for
    rows = np.full((len(labels), len(classes)), 0.2 / (len(classes) - 1))
    rows[np.arange(len(labels)), said] = 0.8
    return Evaluation.of(rows, labels, classes, [path.format(n) for n in range(len(labels))])


def page(said, tmp_path, facts=None):
    facts = {"Model": "model", "Data": "photos", "Backbone": "ViT-B/16", **(facts or {})}
    write_model_page(tmp_path / "report.html", facts, {**FIGURES, "zero_shot": FIGURES}, said, tmp_path)
    return (tmp_path / "report.html").read_text()


@pytest.fixture
def without_plots(monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)


def test_the_page_is_whole_in_itself_and_takes_no_name_for_markup(tmp_path):
    said = answers([HOSTILE, "b", "c"], path=f"{HOSTILE.replace('/', '')}{{}}.png")
    Image.new("RGB", (400, 300), "red").save(tmp_path / said.paths[0])
    text = page(said, tmp_path, {"Model": HOSTILE})
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    (uri,) = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)"', text)
    assert len(uri) < 10_000  # a thumbnail, not the photograph
    assert text.count("<svg") == 2  # reliability, risk against coverage
    assert 'name="viewport"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_what_is_promised_stands_beside_what_came_of_it(tmp_path, monkeypatch):
    shares = (0.5, 0.9, 0.93)
    rows = [{"promised": at, "threshold": at, "answered": 1.25 - at, "right": 0.97} for at in shares]
    monkeypatch.setitem(FIGURES, "trade", rows)
    text = page(answers(["cat", "dog", "cow"]), tmp_path)
    shown = re.findall(r'<th scope="row">(9\d%)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', text)
    assert shown == [("90%", "0.900", "35.0%", "97.0%"), ("93%", "0.930", "32.0%", "97.0%")]
    assert "promised" in text[text.index("<svg") :]


@pytest.mark.usefixtures("without_plots")
def test_it_says_what_is_wrong_weakest_first(tmp_path):
    said = answers(["cat", "dog", "cow"])
    text = page(said, tmp_path)
    assert "<strong>cat</strong> taken for <strong>dog</strong>" in text and "1 of 4 images (25.0%)" in text
    assert "matplotlib is not installed" in text and "<svg" not in text
    classes = text[text.index(">Classes</h2>") :]
    assert re.findall(r'<th scope="row">(\w+)</th>', classes)[:3] == ["cat", "dog", "cow"]
    assert "<td>75.0%</td><td>100.0%</td>" in classes  # the cat's recall and precision
    assert '<tr><th scope="row">100%</th><td>91.7%</td></tr>' in text  # all images answered


@pytest.mark.usefixtures("without_plots")
def test_of_many_classes_the_matrix_shows_those_with_errors_and_the_rest_is_folded(tmp_path):
    names = [f"class {n}" for n in range(MOST_CLASSES + 5)]
    text = page(answers(names, wrong=[(33, 34)], each=2), tmp_path)
    matrix = text[text.index('class="wide matrix"') :]
    columns = re.findall(r'<th scope="col">([^<]+)</th>', matrix[: matrix.index("</thead>")])
    assert len(columns) == MOST_IN_MATRIX and {"class 33", "class 34"} <= set(columns)
    assert "5 more classes</summary>" in text


@pytest.mark.usefixtures("without_plots")
def test_without_a_mistake_there_is_no_pair(tmp_path):
    assert "Most confused pairs" not in page(answers(["a", "b"], wrong=()), tmp_path)


def test_the_whole_matrix_of_many_classes_is_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(model_page, "MOST_IN_MATRIX", 2)
    assert page(answers(["a", "b", "c"]), tmp_path).count("<svg") == 3


def test_findings_name_the_weakest_and_say_which_way_confidence_leans():
    said = findings(answers(["cat", "dog"], each=4))
    assert said[:3] == [
        "1 of 8 images are named wrongly.",
        "Weakest class: cat; 3 of its 4 images are found (75.0%).",
        "Most confused: cat, taken for dog (1 of 4 images).",
    ]
    assert "underconfident by 7.5 points" in said[3] and "2 of 2" in said[4]
    sure = answers(["cat", "dog"], wrong=[(0, 1), (1, 0)], each=2)
    assert any("overconfident by 30.0 points" in sentence for sentence in findings(sure))


def two_each(classes):
    """Two images of each class; the first of the first class is taken for the last class."""
    labels = np.repeat(np.arange(len(classes)), 2)
    rows = np.full((len(labels), len(classes)), 0.1 / (len(classes) - 1))
    rows[np.arange(len(labels)), labels] = 0.9
    rows[0] = rows[-1]
    return Evaluation.of(rows, labels, classes, [f"{n}.png" for n in range(len(labels))])


def test_the_files_hold_tables_and_figures(tmp_path):
    names = write_figures(two_each(["cat, striped", "dog"]), tmp_path / "made")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "made").iterdir())
    rows = list(csv.reader((tmp_path / "made" / "confusion.csv").open()))
    assert rows[1:] == [["cat, striped", "1", "1"], ["dog", "0", "2"]]
    first = next(csv.DictReader((tmp_path / "made" / "classes.csv").open()))
    assert (first["class"], first["recall"], first["precision"]) == ("cat, striped", "0.5", "1.0")
    assert {"confusion.svg", "confusion.png", "reliability.svg", "risk-coverage.svg"} < set(names)


def test_without_matplotlib_the_tables_are_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    assert write_figures(two_each(["cat", "dog"]), tmp_path) == ["confusion.csv", "classes.csv"]
