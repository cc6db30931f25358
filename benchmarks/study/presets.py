"""The paper's claims under `literal`, `paper` and `default`, from the runs of the recipes that
`benchmarks.readings.choose` wrote.

    python -m benchmarks.study.presets RUNS --recipes DIR --out benchmarks/results/study-presets.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.study.claims import FEW_ABLATION, FIRST, Claim, claims
from benchmarks.study.parts import Part
from benchmarks.study.summary import find_runs, summarise
from benchmarks.study.tables import NOT_RUN, plain_lead
from pbprompt import markdown
from pbprompt.files import write_text
from pbprompt.research.recipes import load_recipe
from pbprompt.research.runs import RunStore

FILE = Path(__file__).parents[1] / "results" / "study-presets.json"
FAMILIES = ("literal", "paper", "default")
PARTS = ("few-shot", "base-to-new", "eta", "lambda")
COLUMNS = {  # heading -> part, column
    "1 shot": ("few-shot", "average, 1 shot"),
    "4 shots": ("few-shot", "average, 4 shots"),
    "16 shots": ("few-shot", "average, 16 shots"),
    "base": ("base-to-new", "average, Base"),
    "new": ("base-to-new", "average, New"),
    "H": ("base-to-new", "average, H"),
}
RIVALS = ("CoOp", "PLOT", "CoCoOp", "ProDA", "VPT", "SHIP")


def measure(store: RunStore, recipes: Path) -> dict[str, Any]:
    """A summary of each family, and what was chosen for it."""
    found = {}
    for family in FAMILIES:
        parts = [Part(part, (load_recipe(str(recipes / f"claims-{part}-{family}.yaml")),)) for part in PARTS]
        if any(find_runs(part, store.records()) for part in parts):
            found[family] = summarise(store, parts, lambda line: print(line, file=sys.stderr), study=family)
    return {"chosen": json.loads((recipes / "chosen.json").read_text(encoding="utf-8")), "families": found}


def shown(file: Path = FILE) -> str:
    """As markdown: verdicts, figures, what each difference is, what was chosen."""
    if not file.is_file():
        return "Not run."
    measured = json.loads(file.read_text(encoding="utf-8"))
    families = {
        family: summary
        for family, summary in measured["families"].items()
        if FIRST in summary["parts"]["few-shot"]["cells"]  # not the rivals alone, which all share
    }
    judged = {family: claims(families[family], FEW_ABLATION) for family in families}
    verdicts = [
        [str(own[0].number), own[0].text, *map(_verdict, own)] for own in zip(*judged.values(), strict=True)
    ]
    why = [
        [
            f"{check.first} − {check.second} ({check.part}, {check.column}, {check.metric})",
            *(plain_lead(other.lead) if other.lead else NOT_RUN for other in checks),
        ]
        for own in zip(*judged.values(), strict=True)
        if own[0].number != 6
        for checks in zip(*(one.checks for one in own), strict=True)
        for check in checks[:1]
        if any(one.lead for one in checks)
    ]
    chosen = [
        [
            name,
            ", ".join(f"{key}={'' if value is None else value}" for key, value in one["settings"].items()),
            str(one["of"]),
        ]
        for name, one in measured["chosen"].items()
    ]
    return "\n\n".join(
        [
            markdown.table(["", "claim", *families], verdicts),
            markdown.table(["accuracy, % / NLL", *COLUMNS], _figures(families)),
            markdown.table(["difference", *families], why),
            markdown.table(["chosen on validation images", "settings", "of"], chosen),
        ]
    )


def _verdict(claim: Claim) -> str:
    return f"**{claim.verdict}**" if any(check.lead for check in claim.checks) else "not run"


def _figures(families: dict[str, Any]) -> list[list[str]]:
    """The variants of every family, then the rivals, which all have in common."""
    rows: dict[str, list[str]] = {}
    for rivals in (False, True):
        for family, summary in families.items():
            for label in [label for part in summary["parts"].values() for label in part["rows"]]:
                if label.startswith(RIVALS) == rivals and not label.startswith(("η", "λ")):
                    rows[label if rivals else f"{label}, {family}"] = _cells(summary, label)
    return [[label, *cells] for label, cells in rows.items() if any(cell != NOT_RUN for cell in cells)]


def _cells(summary: dict[str, Any], label: str) -> list[str]:
    found = [summary["parts"][part]["cells"].get(label, {}).get(key) for part, key in COLUMNS.values()]
    return [f"{100 * one['accuracy'][0]:.1f} / {one['nll'][0]:.2f}" if one else NOT_RUN for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--recipes", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    measured = measure(RunStore(options.runs), options.recipes)
    write_text(options.out, json.dumps(measured, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(shown(options.out))


if __name__ == "__main__":
    main()
