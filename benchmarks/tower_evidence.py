"""`tower-evidence` beside `conjugate` on frozen features, on validation images.

    python -m benchmarks.tower_evidence oxford_pets --root DATA --shots 4 16 --draws 2
    python -m benchmarks.tower_evidence PHOTOS --shots 4 --methods clip-lora --set last=2

One row for each method and number of shots, mean over the draws: accuracy and NLL, as the method gives its
probabilities, without a temperature from the validation images. No test image is read.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from pbprompt.clip.loading.load import load_backbone
from pbprompt.data.fewshot import draw
from pbprompt.data.sources import open_dataset
from pbprompt.features.bank import FeatureBank
from pbprompt.methods.base import make_config
from pbprompt.model.scoring import score
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.runs.provenance import commit
from pbprompt.train.tune import bank_on

SETTINGS: dict[str, list[str]] = {"conjugate": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="a folder, table, or benchmark with --root")
    parser.add_argument("--root", type=Path, help="where the benchmarks are")
    parser.add_argument("--shots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=["conjugate", "tower-evidence"])
    parser.add_argument("--set", action="append", default=[], help="a setting of all methods but conjugate")
    parser.add_argument("--backbone", default="lite-vit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--most", type=int, default=2000, help="validation images, the first so many")
    given = parser.parse_args()

    bank = FeatureBank(load_backbone(given.backbone, device=given.device))
    whole = open_dataset(given.data, given.root)
    held_out = whole.val[:: max(1, -(-len(whole.val) // given.most))]
    print(f"{whole.name}: {len(whole.classes)} classes, {len(held_out):,} validation images; {commit()}")
    for shots in given.shots:
        for name in given.methods:
            kind, found, seconds = find_method(name), [], []
            config = make_config(kind, overrides=SETTINGS.get(name, given.set))
            for seed in range(1, given.draws + 1):
                few = draw(whole, shots, seed).apply(whole)
                started = time.perf_counter()
                model = TunedModel.fit(replace(few, val=()), bank, kind, config, seed=seed)
                seconds.append(time.perf_counter() - started)
                features = bank_on(bank, model.backbone).encode(whole.root, held_out)
                found.append(score(model.predictor, features))
            means = {key: round(fmean(one[key] for one in found), 4) for key in ("accuracy", "nll", "ece")}
            facts = {"data": whole.name, "method": name, "shots": shots, "draws": given.draws, **means}
            print(json.dumps({**facts, "set": given.set, "seconds": round(fmean(seconds))}), flush=True)


if __name__ == "__main__":
    main()
