"""The recipes of rounds whose preset was changed since say what was run."""

import json
from pathlib import Path

import pytest

from pbprompt.config import to_dict
from pbprompt.learners.method import make_config
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.research.recipes import load_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["round-11", "round-11-new", "round-11-cross", "round-11-shift"])
def test_former_settings_are_those_that_were_run(name):
    lines = (BENCHMARKS / "results" / "readings-val-11.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    recipe = load_recipe(str(BENCHMARKS / "readings" / f"{name}.yaml"))
    was = {run["settings"]["label_embedding"]: run["settings"] for run in runs
           if (run["config"]["task"], run["config"]["preset"]) == (recipe.task, "paper")}  # fmt: skip
    rows = [row for row in recipe.rows if row.label.startswith("paper")]
    assert len(rows) == len(was) == 2
    for row in rows:
        now = to_dict(make_config(PBPrompt, row.preset, row.variant, row.overrides))
        before = was[row.label.removeprefix("paper, ")]
        assert {key: now[key] for key in before} == before
        later = {"name_tokens": "own", "layer": "attention", "ct_sum": False, "ct_plan": "cosine"}
        assert {key: now[key] for key in later} == later
