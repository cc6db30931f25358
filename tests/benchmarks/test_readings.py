"""The recipes of rounds whose preset was changed since say what was run."""

import json
from pathlib import Path

import pytest

from benchmarks.readings import subsets, table
from pbprompt.config import read_yaml, to_dict
from pbprompt.learners.method import make_config
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.research.recipes import load_recipe
from pbprompt.vision.images.sources import open_dataset

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_has_the_tables_as_their_command_prints_them():
    page = (BENCHMARKS.parent / "docs" / "readings.md").read_text(encoding="utf-8")
    found = json.loads((BENCHMARKS / "results" / "readings-val-12.json").read_text(encoding="utf-8"))
    assert f"\n{table.open_readings(found)}\n" in page and f"\n{table.table(found)}\n" in page


def test_every_setting_that_a_preset_of_the_paper_changes_is_an_open_reading_or_the_optimiser():
    rows = read_yaml(table.READINGS.read_text(encoding="utf-8"))
    open_ones = {key for row in rows for key in row.get("settings", ())}
    changed = {key for name in ("literal", "paper") for key in PBPrompt.presets[name]}
    assert changed - open_ones == {"optimiser", "learning_rate", "weight_decay", "ct_weight"}


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


def test_a_subset_has_the_first_photographs_of_the_first_classes():
    whole = open_dataset("sample")
    parts = subsets.subset(whole, 2)
    assert {label for part in parts.values() for _, label, _ in part} == {0, 1}
    for split, most in subsets.PHOTOGRAPHS.items():
        own = [item.path for item in whole.split(split) if item.label == 1]
        assert [path for path, label, _ in parts[split] if label == 1] == own[:most]
