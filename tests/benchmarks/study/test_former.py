"""Rows of a former edition: figures and differences, no interval, and only of the same code and data."""

import copy

import pytest

from benchmarks.study.claims import find_lead
from benchmarks.study.former import with_former
from benchmarks.study.tables import tables
from pbprompt.errors import InputError

KEY = "average, 1 shot"


def cell(accuracy, *more):
    return {"seeds": 3, "accuracy": [accuracy, 0.01, *more], "nll": [1.0, 0.1], "ece": [0.1, 0.0]}


def summary(cells, code):
    identity = {"backbone": {"lite abc": 1}, "data": {"pets 12": 1}, "code": code}
    identity |= {"commits": {"c0ffee": 1}, "machines": {"a CPU": 1}, "finished": ["then", "now"]}
    part = {
        "rows": {"conjugate": "conjugate", "CoOp": "coop", "GDA": "gda"},
        "columns": [["average", "1 shot"]],
        "cells": {row: {KEY: value} for row, value in cells.items()},
        "missing": {"CoOp": ["all of it"], "GDA": ["all of it"]},
    }
    return {"identity": identity, "parts": {"few-shot": part}}


FORMER = summary(
    {"conjugate": cell(0.4), "CoOp": cell(0.5, -0.1, -0.2, 0.0), "GDA": cell(0.3)},
    {"coop: coop 1, loop 1": 3, "gda: gda 0, loop 1": 3},
)


def test_a_row_without_runs_has_the_formers_figures_less_the_first_rows_own():
    study = with_former(summary({"conjugate": cell(0.7)}, {}), FORMER)
    part = study["parts"]["few-shot"]
    assert list(part["cells"]) == ["conjugate", "CoOp"]  # GDA is of another revision
    assert part["cells"]["CoOp"][KEY]["accuracy"] == [0.5, 0.01, 0.2]
    assert find_lead(study, "few-shot", "CoOp", KEY, "accuracy").outcome() == "open"
    assert "| CoOp | 50.00 ± 1.00 † |" in tables(study, "few-shot")
    assert part["missing"]["GDA"] == ["all of it"] and "former runs" in part["missing"]["CoOp"][0]
    assert study["identity"]["former"]["rows"] == ["few-shot: CoOp"]


def test_rows_that_were_run_stay():
    own = summary({"conjugate": cell(0.7), "CoOp": cell(0.6, 0.1, 0.05, 0.15)}, {})
    assert with_former(own, FORMER)["parts"]["few-shot"]["cells"] == own["parts"]["few-shot"]["cells"]


def test_other_data_is_refused():
    other = copy.deepcopy(summary({"conjugate": cell(0.7)}, {}))
    other["identity"]["data"] = {"pets 13": 1}
    with pytest.raises(InputError, match="another data: pets was 12"):
        with_former(other, FORMER)
