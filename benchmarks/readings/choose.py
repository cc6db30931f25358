"""From runs on validation images to the recipes that read the test images: what each method chose.

    python -m benchmarks.readings.choose RUNS --out DIR [--dataset FILE …]

The preset `paper` is the row of round 12 with the best mean of few-shot accuracy (1 and 4 shots) and of H,
the same for both; a rival has the best of its settings in its own task. What lacks a run is not chosen. DIR
then has four recipes for each of `literal`, `paper` and `default`, and `chosen.json` says what was chosen of
how many, by which figures.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from pbprompt.research.runs import RunRecord, RunStore

RIVALS = {"few-shot": ("coop", "plot"), "base-to-new": ("cocoop", "proda", "vpt", "ship")}
LABELS = {"coop": "CoOp", "plot": "PLOT", "cocoop": "CoCoOp", "proda": "ProDA", "vpt": "VPT", "ship": "SHIP"}
VARIANTS = {
    "PBPrompt": "",
    "B-Prompt": "b-prompt",
    "P-Prompt": "p-prompt",
    "PBPrompt, w/o-S": "without-sampling",
    "PBPrompt, OT": "ot",
}
ETAS, LAMBDAS = (0, 0.01, 0.1, 1, 10), (0, 0.25, 0.5, 0.75, 1)
NOTE = "lite is not CLIP; its figures are not comparable with the paper's."
Words = tuple[str, ...]


def scores(records: list[RunRecord], task: str, method: str, preset: str = "default") -> dict[Words, float]:
    """Of every setting that has all cells that any has: its mean score."""
    found: dict[Words, dict[Any, float]] = defaultdict(dict)
    for record in records:
        config = record.config
        if (config.task, config.method, config.preset, config.split) == (task, method, preset, "val"):
            words = tuple(word for word in config.overrides if (method, word) != ("pbprompt", "epochs=10"))
            found[words][config.dataset, config.shots, config.seed] = record.score
    most = max(map(len, found.values()), default=0)
    return {words: fmean(cells.values()) for words, cells in found.items() if len(cells) == most}


def best(found: dict[Words, float]) -> Words:
    return max(found, key=lambda words: found[words])


def overrides(words: Words) -> dict[str, Any]:
    pairs = (word.partition("=") for word in words)
    return {key: yaml.safe_load(value) if value else "" for key, _, value in pairs}


class Plain(yaml.SafeDumper):
    """Without aliases, which a recipe may not have."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["caltech101", "oxford_pets"])
    options = parser.parse_args()
    records = RunStore(options.runs).records()
    few, new = (scores(records, task, "pbprompt", "literal") for task in ("few-shot", "base-to-new"))
    both = {words: fmean((few[words], new[words])) for words in few.keys() & new.keys() if words}
    paper = best(both)
    chosen: dict[str, Any] = {"paper": {"settings": overrides(paper), "of": len(both), "by": both[paper]}}
    rivals: dict[str, list[dict[str, Any]]] = {}
    for task, names in RIVALS.items():
        rivals[task] = []
        for name in names:
            found = scores(records, task, name)
            if not found:  # cut by time
                continue
            tuned = best(found)
            chosen[name] = {"settings": overrides(tuned), "of": len(found), "by": found[tuned]}
            rivals[task].append({"label": LABELS[name], "method": name, "overrides": overrides(tuned)})
            rivals[task].append({"label": f"{LABELS[name]}, as published", "method": name})
    options.out.mkdir(parents=True, exist_ok=True)

    def write(name: str, task: str, shots: list[int], rows: list[dict[str, Any]]) -> None:
        recipe: dict[str, Any] = {"title": f"The paper's claims: {name}", "task": task, "backbone": "lite"}
        recipe |= {"datasets": options.dataset, "shots": shots, "seeds": [1, 2], "rows": rows, "note": NOTE}
        text = yaml.dump(
            recipe, Dumper=Plain, allow_unicode=True, sort_keys=False, default_flow_style=None, width=200
        )
        (options.out / f"claims-{name}.yaml").write_text(text, encoding="utf-8")

    families: dict[str, tuple[str, str, dict[str, Any]]] = {  # preset, that of new classes, settings
        "literal": ("literal", "literal", {"batch_size": 32}),
        "paper": ("literal", "literal", overrides(paper)),
        "default": ("default", "new-classes", {}),
    }
    for family, (preset, newer, changed) in families.items():
        printed = family != "default"

        def own(label: str, preset: str, more: dict[str, Any], variant: str = "") -> dict[str, Any]:
            row: dict[str, Any] = {"label": label, "method": "pbprompt", "preset": preset}
            return row | ({"variant": variant} if variant else {}) | ({"overrides": more} if more else {})

        many = [own(label, preset, changed, variant) for label, variant in VARIANTS.items()]
        write(f"few-shot-{family}", "few-shot", [1, 4, 16], [*many, *rivals["few-shot"]])
        ten = {**changed, "epochs": 10} if printed else changed
        many = [own(label, newer, ten, variant) for label, variant in VARIANTS.items()]
        write(f"base-to-new-{family}", "base-to-new", [16], [*many, *rivals["base-to-new"]])
        rows = [own(f"η = {eta}", preset, {**changed, "ct_weight": eta}) for eta in ETAS]
        write(f"eta-{family}", "few-shot", [1, 4], rows)
        rows = [own(f"λ = {x}", preset, {**changed, "ct_sum": False, "ct_balance": x}) for x in LAMBDAS]
        write(f"lambda-{family}", "few-shot", [1, 4], rows)
    (options.out / "chosen.json").write_text(
        json.dumps(chosen, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
