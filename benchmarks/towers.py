"""Methods that reach into the towers beside others that do not, on `lite-vit`, which is not CLIP.

    python -m benchmarks.towers oxford_pets flowers102 --root DATA --shots 4 16 --out towers.jsonl
    python -m benchmarks.towers flowers102 --root DATA --methods clip-lora:budget=500 --out towers.jsonl
    python -m benchmarks.towers flowers102 --root DATA --base-to-new --out towers.jsonl
    python -m benchmarks.towers --table towers.jsonl

A row for each dataset, number of shots, draw and method, with what the method says of each image, appended as
it is done; what is there is not done again. `--table` writes the means, and how far each is from `conjugate`
on the same images and draws, with the middle 95 % over resampled images. Figures are those of the method's
own probabilities, without a temperature. With `--classes`, so many of a dataset's classes are drawn (seed 0).
`--part val` is for choosing settings.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.learn import bank_on
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.metrics.resampling import image_counts, interval, resampled_mean
from pbprompt.model.predictor import predict_features
from pbprompt.model.scoring import log_probabilities
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

METHODS = ("conjugate", "tower-evidence")
PARTS = ("base", "new", "together")
Row = dict[str, Any]


def some_classes(whole: Dataset, count: int | None) -> Dataset:
    """So many of its classes, drawn by chance."""
    if count is None or count >= len(whole.classes):
        return whole
    kept = sorted(random.Random(0).sample(range(len(whole.classes)), count))
    place = {label: new for new, label in enumerate(kept)}

    def own(items: Sequence[Item]) -> tuple[Item, ...]:
        return tuple(replace(item, label=place[item.label]) for item in items if item.label in place)

    names = tuple(whole.classes[label] for label in kept)
    return replace(whole, classes=names, train=own(whole.train), val=own(whole.val), test=own(whole.test))


def said_of(
    model: TunedModel, bank: FeatureCache, test: Dataset, part: str, most: int, *, together: bool = False
) -> Row:
    """Whether it is right about each image, and what it costs not to be sure; every so many of the images.

    `together`: having seen them all without their labels.
    """
    items = getattr(test, part)
    features = bank_on(bank, model.backbone).encode(test.root, items[:: max(1, -(-len(items) // most))])
    model = model.together(features.global_) if together else model
    logs = log_probabilities(
        predict_features(model.for_classes(test.classes, test.template).predictor, features)
    )
    labels = features.labels
    right = (logs.argmax(1) == labels).int().tolist()
    return {"right": right, "nll": [round(-float(value), 4) for value in logs.gather(1, labels[:, None])]}


def run(given: argparse.Namespace) -> None:
    bank = FeatureCache(load_backbone(given.backbone, device=given.device))
    done = {_key(row) for row in _read(given.out)}
    for data in given.data:
        whole = some_classes(open_dataset(data, given.root), given.classes)
        for shots in given.shots:
            for seed in range(1, given.draws + 1):
                few = draw(whole, shots, seed).apply(whole)
                base, new = base_new(few) if given.base_to_new else (few, None)
                for word in given.methods:
                    name, _, overrides = word.partition(":")
                    row: Row = {
                        "data": data, "classes": len(whole.classes), "shots": shots, "seed": seed,
                        "part": given.part, "method": word, "task": "base-to-new" if new else "few-shot",
                        "draw": few.drawn.hash if few.drawn else "", "commit": commit(),
                    }  # fmt: skip
                    if _key(row) in done:
                        continue
                    kind = find_method(name)
                    preset, *others = overrides.split(",") if overrides else [""]
                    if "=" in preset:
                        preset, others = "", [preset, *others]
                    started = time.perf_counter(), time.process_time()
                    config = make_config(kind, preset, overrides=others)
                    model = TunedModel.fit(replace(base, val=()), bank, kind, config, FitOptions(seed=seed))
                    row["seconds"] = round(time.perf_counter() - started[0])
                    row["processor_seconds"] = round(time.process_time() - started[1])
                    row["base"] = said_of(model, bank, base, given.part, given.most)
                    if new:
                        row["new"] = said_of(model, bank, new, given.part, given.most)
                    elif isinstance(model.method, TakesUnlabelled):
                        row["together"] = said_of(model, bank, base, given.part, given.most, together=True)
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    shown = {key: value for key, value in row.items() if key not in PARTS}
                    print(json.dumps({**shown, **_figures([row])}), flush=True)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("task", "data", "classes", "shots", "seed", "part", "method"))


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _figures(rows: Sequence[Row]) -> dict[str, float]:
    """Means over rows of equal weight."""
    parts = [part for part in PARTS if part in rows[0]]
    found = {
        f"{part} {key}": float(np.mean([np.mean(row[part][key]) for row in rows])) for part in parts
        for key in ("right", "nll")
    }  # fmt: skip
    if "new" in parts:
        each = [harmonic_mean(*(float(np.mean(row[part]["right"])) for part in parts)) for row in rows]
        found["H"] = float(np.mean(each))
    return {key: round(value, 4) for key, value in found.items()}


def _resampled(rows: Sequence[Row], part: str, key: str) -> NDArray[np.float64]:
    """The mean over rows, in each resample of the images: those of a dataset are the same for all rows."""
    found = [resampled_mean(row[part][key], image_counts(len(row[part][key]), 2000)) for row in rows]
    return np.mean(found, axis=0)


def table(rows: Sequence[Row]) -> str:
    """Markdown: a table for each task and number of shots, over the datasets and draws that all have."""
    groups: dict[tuple[str, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["task"], row["shots"]][row["method"]].append(row)
    lines = []
    for (task, shots), by_method in sorted(groups.items()):
        place = {name: {(row["data"], row["seed"]): row for row in own} for name, own in by_method.items()}
        shared = sorted(place["conjugate"])
        sets = ", ".join(f"{data} (draw {seed})" for data, seed in shared)
        lines += [f"\n{task}, {shots} shots; {sets}; commits {sorted({row['commit'] for row in rows})}\n"]
        more = {"new right": "new", "H": "H"} if task == "base-to-new" else {"together right": "--together"}
        heads = ["method", "accuracy", "NLL", "to `conjugate`, points", "NLL to it", *more.values(), "CPU s"]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        plain = [place["conjugate"][key] for key in shared]
        for name, own in place.items():
            if set(shared) - set(own):
                lines += [f"| {name} | on {len(own)} of {len(shared)} only |" + " |" * (len(heads) - 2)]
                continue
            mine = [own[key] for key in shared]
            figures = _figures(mine)
            cells = [f"{100 * figures['base right']:.1f}", f"{figures['base nll']:.3f}"]
            for key, factor in (("right", 100), ("nll", 1)):
                gaps = factor * (_resampled(mine, "base", key) - _resampled(plain, "base", key))
                low, high = interval(gaps)
                apart = factor * (figures[f"base {key}"] - _figures(plain)[f"base {key}"])
                digits = 1 if key == "right" else 3
                cells += [f"{apart:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"]
            cells += [f"{100 * figures[key]:.1f}" if key in figures else "" for key in more]
            cells += [f"{np.mean([row['processor_seconds'] for row in mine]):.0f}"]
            lines += [f"| {name} | " + " | ".join(cells) + " |"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="*", help="folders, tables, or benchmarks with --root")
    parser.add_argument("--root", type=Path, help="where the benchmarks are")
    parser.add_argument("--shots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--classes", type=int, help="so many classes of each dataset, drawn")
    parser.add_argument("--base-to-new", action="store_true", help="fit half of the classes")
    methods = "name[:preset][,setting=value…]; presets and settings behind a colon"
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help=methods)
    parser.add_argument("--part", choices=["val", "test"], default="test")
    parser.add_argument("--most", type=int, default=600, help="images of a dataset, every so many of them")
    parser.add_argument("--backbone", default="lite-vit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("towers.jsonl"), help="rows, one appended per fit")
    parser.add_argument("--table", type=Path, help="write the tables of such a file instead")
    given = parser.parse_args()
    if given.table:
        print(table(_read(given.table)))
    else:
        run(given)


if __name__ == "__main__":
    main()
