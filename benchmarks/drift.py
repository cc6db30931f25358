"""How often `pbprompt monitor` says drift: photographs after photographs, and drawings after photographs.

    python -m benchmarks.drift --root DATA --out benchmarks/results/drift.json
    python -m benchmarks.drift --show benchmarks/results/drift.json

In each draw the default model is fitted to some photographs of PACS (features of `lite`), drawn at random
as a folder of one's own would hold them, and asked about others: photographs that it has not seen, or images
of the other three domains, in which classes are otherwise frequent. Alarms in % of draws, by each of the
three tests and by all (Bonferroni), at an error rate. No constant was chosen on these figures.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.problems import DOMAINS, Labelled, bank, fitted, split, words
from pbprompt import markdown
from pbprompt.files import write_text
from pbprompt.learners.predictive import rounded
from pbprompt.model.calibration import calibrate_left_out
from pbprompt.model.monitoring import Answered, compare
from pbprompt.model.predictor import Predictor, predictive
from pbprompt.research.provenance import commit

FITTED = (112, 350)  # photographs
ASKED = (10, 30, 300)  # images
RATES = (0.01, 0.05)
DRAWS = 100
OTHERS = 20  # draws that are asked about other domains, too


@cache
def domain(name: str, root: Path) -> Labelled:
    """The photographs of PACS, or half of another domain."""
    split_of = ("train", "val", "test") if name == "photo" else ("train",)
    parts = [split(f"pacs:{name}", root, part) for part in split_of]
    return Labelled(torch.cat([one.images for one in parts]), torch.cat([one.labels for one in parts]))


def some(images: Labelled, rows: torch.Tensor) -> Labelled:
    return Labelled(images.images[rows], images.labels[rows])


def answered(predictor: Predictor, images: Labelled) -> Answered:
    said = predictor(images.encoded)
    best, labels = said.probabilities.max(1)
    classes = [predictor.classes[label] for label in labels.tolist()]
    return Answered(classes, rounded(best), rounded(said.familiarity))


def measured(count: int, seed: int, root: Path) -> list[dict[str, Any]]:
    """The p-values of one draw."""
    chance = torch.Generator().manual_seed(seed)
    photos = domain("photo", root)
    order = torch.randperm(len(photos.labels), generator=chance)
    predictor = predictive(fitted(*words("pacs:photo", root), some(photos, order[:count])))
    calibration = calibrate_left_out(predictor)
    assert calibration is not None
    rows = []
    for name in DOMAINS if seed <= OTHERS else DOMAINS[:1]:
        pool = some(photos, order[count:]) if name == "photo" else domain(name, root)
        shuffled = torch.randperm(len(pool.labels), generator=chance)
        for asked in ASKED:
            now = answered(predictor, some(pool, shuffled[:asked]))
            values = {one.share.partition(" ")[0]: one.p_value for one in compare(calibration, now)}
            rows.append({"fitted": count, "seed": seed, "domain": name, "asked": asked, "p": values})
    return rows


def alarms(rows: list[dict[str, Any]], rate: float) -> dict[str, float]:
    """In % of rows: by each test alone, and by all of them."""
    tests = rows[0]["p"]
    found = {test: 100 * fmean(row["p"][test] <= rate for row in rows) for test in tests}
    return found | {"all": 100 * fmean(min(row["p"].values()) <= rate / len(tests) for row in rows)}


def shown(rows: list[dict[str, Any]]) -> str:
    table = []
    for count in FITTED:
        for name in DOMAINS:
            for asked in ASKED:
                own = [
                    row
                    for row in rows
                    if (row["fitted"], row["domain"], row["asked"]) == (count, name, asked)
                ]
                cells = [f"{share:.0f}" for rate in RATES for share in alarms(own, rate).values()]
                table.append([f"{count}", name, f"{asked}", f"{len(own)}", *cells])
    tests = [*rows[0]["p"], "all"]
    heads = [f"{test} at {rate:.0%}" for rate in RATES for test in tests]
    return markdown.table(["fitted to", "asked about", "images", "draws", *heads], table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        print(shown(json.loads(options.show.read_text(encoding="utf-8"))["rows"]))
        return
    torch.set_num_threads(1)
    bank()
    rows = [
        row
        for count in FITTED
        for seed in range(1, options.draws + 1)
        for row in measured(count, seed, options.root)
    ]
    if options.out:
        facts = {"commit": commit(), "backbone": "lite", "rows": rows}
        write_text(options.out, json.dumps(facts, separators=(",", ":")) + "\n")
    print(shown(rows))


if __name__ == "__main__":
    main()
