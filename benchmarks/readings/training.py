"""Token cosine and plan entropy while the three presets train on the sample: measured, then drawn.

    python -m benchmarks.readings.training --out benchmarks/results/readings-training.json
    python -m benchmarks.readings.training --draw docs/images

They are what `fit` logs every tenth epoch. `literal` takes batches of 32 here, as in round 12.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pbprompt.apps.pages import plots
from pbprompt.files import write_text
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

FILE = Path(__file__).parents[1] / "results" / "readings-training.json"
ROWS = {
    "literal, batches of 32": ("literal", ("batch_size=32",)),
    "paper": ("paper", ()),
    "default": ("default", ()),
}
SHOTS, SEED = 4, 1
DRAWN = {"token_cosine": "Cosine of two prefix tokens", "plan_entropy": "Entropy of π(u | g), nats"}


def measure() -> dict[str, Any]:
    """Every line of each row's log that looks at the tokens."""
    data, bank = open_dataset("sample"), FeatureCache(load_backbone("lite"))
    few = draw(data, SHOTS, SEED).apply(data)
    rows: dict[str, list[dict[str, float]]] = {}
    for label, (preset, overrides) in ROWS.items():
        log: list[dict[str, float]] = []
        config = make_config(PBPrompt, preset, overrides=overrides)
        TunedModel.fit(few, bank, PBPrompt, config, FitOptions(seed=SEED, on_log=log.append))
        seen = [line for line in log if "token_cosine" in line]
        rows[label] = [
            {"epoch": line["epoch"], **{key: round(line[key], 4) for key in DRAWN}} for line in seen
        ]
        print(label, rows[label][0], rows[label][-1], flush=True)
    facts = {"data": few.name, "shots": SHOTS, "seed": SEED, "backbone": bank.backbone.fingerprint}
    return {**facts, "commit": commit(), "rows": rows}


def picture(found: dict[str, Any], metric: str, folder: Path) -> None:
    lines = {label: {line["epoch"]: [line[metric]] for line in log} for label, log in found["rows"].items()}
    figure = plots.curves(lines, measured=DRAWN[metric], axis="Epoch", share=False)
    plots.save(figure, folder / f"pbprompt-{metric.replace('_', '-')}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="measure, and keep what was measured in this file")
    parser.add_argument("--draw", type=Path, help="draw what is kept into this folder")
    options = parser.parse_args()
    if options.out:
        write_text(options.out, json.dumps(measure(), indent=1, ensure_ascii=False) + "\n")
    if options.draw:
        found = json.loads((options.out or FILE).read_text(encoding="utf-8"))
        for metric in DRAWN:
            picture(found, metric, options.draw)


if __name__ == "__main__":
    main()
