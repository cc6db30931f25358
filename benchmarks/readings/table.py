"""Round 12 as a table: every reading of the printed text by its figures on validation images.

    python -m benchmarks.readings.table RUNS --out benchmarks/results/readings-val-12.json
    python -m benchmarks.readings.table benchmarks/results/readings-val-12.json

The first keeps the means of each row and what they rest on, the second prints them as markdown.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from pbprompt import markdown
from pbprompt.files import write_text
from pbprompt.research.recipes import load_recipe
from pbprompt.research.runs.config import RunConfig
from pbprompt.research.runs.record import RunRecord
from pbprompt.research.runs.store import RunStore

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
    print(table(found))


if __name__ == "__main__":
    main()
