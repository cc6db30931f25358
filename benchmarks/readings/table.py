"""The readings of the printed text as tables: what is open and what it measured, and all rows of round 12.

    python -m benchmarks.readings.table RUNS --out benchmarks/results/readings-val-12.json
    python -m benchmarks.readings.table benchmarks/results/readings-val-12.json

The first keeps the means of each row and what they rest on, the second prints them as markdown. The table of
what is open is `open-readings.yaml` with the settings that the presets have now.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from pbprompt import markdown
from pbprompt.config import read_yaml, to_dict
from pbprompt.files import write_text
from pbprompt.learners.method import make_config
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.research.recipes import load_recipe
from pbprompt.research.runs import RunConfig, RunRecord, RunStore

RECORDS = Path(__file__).parents[1] / "results"
READINGS = RECORDS / "open-readings.yaml"
BASE = "literal, batches of 32"  # of round 12
PRESETS = ("literal", "paper", "default")
ROUNDS = ("round-12", "round-12-literal", "round-12-new")
LOOKED_AT = ("token_cosine", "plan_entropy", "posterior_std", "sampled_cosine")
Key = tuple[str, str, str, tuple[str, ...]]


def key(config: RunConfig) -> Key:
    return config.task, config.preset, config.variant, config.overrides


def measured(records: list[RunRecord]) -> dict[str, Any]:
    """Label -> means over datasets, shots and draws; `runs` says over how many, `of` what most rows have."""
    latest = {record.config: record for record in records}  # of runs that were made twice
    own = [record for record in latest.values() if record.config.method == "pbprompt"]
    rows: dict[str, dict[str, Any]] = {}
    for name in ROUNDS:
        recipe = load_recipe(str(Path(__file__).with_name(f"{name}.yaml")))
        for row in recipe.rows:
            wanted = key(recipe.run(row, "any"))
            found = [record for record in own if key(record.config) == wanted]
            if not found:
                continue
            cells = rows.setdefault(row.label, {})
            if recipe.task == "few-shot":
                some = [record.results[record.config.dataset] for record in found]
                cells["few-shot"] = {
                    m: round(fmean(one[m] for one in some), 4) for m in ("accuracy", "nll", "ece")
                }
            else:
                means = {half: fmean(one.accuracy(half) for one in found) for half in ("base", "new")}
                means["H"] = 2 * means["base"] * means["new"] / (means["base"] + means["new"])
                cells["base-to-new"] = {half: round(value, 4) for half, value in means.items()}
            cells[recipe.task]["runs"] = len(found)
            for metric in LOOKED_AT:
                values = [record.train[metric] for record in found if metric in record.train]
                if values and recipe.task == "few-shot":
                    cells["few-shot"][metric] = round(fmean(values), 4)
    used = [record for record in own if record.config.split == "val"]
    return {
        "commits": Counter(record.commit for record in used),
        "machines": Counter(str(record.machine["device"]) for record in used),
        "data": Counter(record.data.name for record in used),
        "shots": sorted({record.config.shots for record in used}),
        "seeds": sorted({record.config.seed for record in used}),
        "rows": rows,
    }


def table(found: dict[str, Any]) -> str:
    """Best few-shot accuracy first."""
    rows = []
    for label, cells in found["rows"].items():
        few, new = cells.get("few-shot", {}), cells.get("base-to-new", {})
        shown = [_percent(few, "accuracy"), _plain(few, "nll"), _percent(few, "ece")]
        shown += [_percent(new, half) for half in ("base", "new", "H")]
        shown += [_plain(few, "token_cosine", 4), _plain(few, "plan_entropy")]
        shown.append(f"{few.get('runs', 0)} + {new.get('runs', 0)}")
        rows.append((few.get("accuracy", 0), [label, *shown]))
    rows.sort(key=lambda one: -one[0])
    heads = ["reading", "accuracy", "NLL", "ECE", "base", "new", "H", "token cosine", "plan entropy", "runs"]
    return markdown.table(heads, [row for _, row in rows])


def open_readings(found: dict[str, Any]) -> str:
    """Words, readings, what each preset has, and what each row measured, with how far it is from another."""
    configs = [to_dict(make_config(PBPrompt, preset)) for preset in PRESETS]
    rows = []
    for one in read_yaml(READINGS.read_text(encoding="utf-8")):
        settings = one.get("settings", [])
        taken = [", ".join(_value(config[key]) for key in settings) or one["shown"] for config in configs]
        said = ", ".join(f"`{key}`" for key in settings)
        measured = "; ".join(_measured(found, **row) for row in one["measured"]) or "–"
        rows.append(
            [one["words"], f"{said}: {one['readings']}" if said else one["readings"], *taken, measured]
        )
    heads = ["the paper's words", "readings", *(f"`{preset}`" for preset in PRESETS), "measured"]
    return markdown.table(heads, rows)


def _measured(found: dict[str, Any], row: str, beside: str = BASE, round: int = 12) -> str:
    """Of round 12 few-shot accuracy and H, of a former round accuracy over the cells that both rows have."""
    if round == 12:
        own, other = found["rows"][row], found["rows"][beside]
        figures = {"": ("few-shot", "accuracy"), "H ": ("base-to-new", "H")}
        both = {
            word: (own[task][key], other[task][key]) for word, (task, key) in figures.items() if task in own
        }
    else:
        lines = (RECORDS / f"readings-val-{round}.jsonl").read_text(encoding="utf-8").splitlines()
        cells: dict[str, dict[Any, float]] = {row: {}, beside: {}}
        for run in map(json.loads, lines):
            cells.get(run["name"], {})[run["dataset"], run["shots"], run["seed"]] = run["accuracy"]
        shared = cells[row].keys() & cells[beside].keys()
        both = {"": (fmean(cells[row][key] for key in shared), fmean(cells[beside][key] for key in shared))}
    shown = [f"{word}{100 * a:.1f} ({_signed(100 * (a - b))})" for word, (a, b) in both.items()]
    what = row if round == 12 and beside == BASE else f"{row} − {beside}"
    return f"{what}{'' if round == 12 else f', round {round}'}: {', '.join(shown)}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−") if abs(value) >= 0.05 else "0.0"


def _value(value: Any) -> str:
    return f"“{value}”" if value == "" or " " in str(value) else f"{str(value).lower()}"


def _percent(cell: dict[str, float], metric: str) -> str:
    return f"{100 * cell[metric]:.1f}" if metric in cell else "–"


def _plain(cell: dict[str, float], metric: str, digits: int = 2) -> str:
    return f"{cell[metric]:.{digits}f}" if metric in cell else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.runs.is_dir():
        found = measured(RunStore(options.runs).records())
    else:
        found = json.loads(options.runs.read_text(encoding="utf-8"))
    if options.out:
        write_text(options.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(open_readings(found), table(found), sep="\n\n")


if __name__ == "__main__":
    main()
