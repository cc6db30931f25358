"""Measure readings of PBPrompt side by side on the frozen embedded backbone.

Each line of the settings file is a name and what changes, as words of `--set`, `preset=` and `variant=`. The
words of a line that starts with * stand before those of every later line:

    default
    paper preset=paper
    b-prompt variant=b-prompt
    eta-1 ct_weight=1

    python benchmarks/readings.py SETTINGS --root DATA --dataset caltech101 --shots 1 4 --seeds 1 2 3
        --split val --out runs.jsonl [--device cuda --jobs 8] [--base-to-new | --targets NAME ...]

Choose on `val` (the whole validation split of the benchmark; no test image is read), report on `test`. One
JSON line a run: settings, figures, draw hash, backbone, commit. Finished lines are not run again. With
--base-to-new a run tunes on the first half of the classes; its accuracy is the harmonic mean of both halves',
its other figures are the halves' means. With --targets a run is also scored on those datasets, under their
names; such a record's dataset is "pacs:photo to pacs:sketch".
"""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import trials  # noqa: F401 - registers its methods

from pbprompt.clip.loading.load import load_backbone
from pbprompt.data.fewshot import base_new, draw
from pbprompt.data.items import Dataset
from pbprompt.data.sources import open_dataset
from pbprompt.evaluate.metrics import harmonic_mean
from pbprompt.features.bank import FeatureBank, Features
from pbprompt.methods.base import Method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.model.scoring import score, zero_shot
from pbprompt.registry import find_method
from pbprompt.runs.provenance import commit
from pbprompt.train.tune import tune


def read_settings(path: Path) -> dict[str, list[str]]:
    common: list[str] = []
    settings = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, *words = line.split("#")[0].split() or [""]
        if name == "*":
            common = words
        elif name:
            settings[name] = common + words
    return settings


def prepare(args: argparse.Namespace) -> None:
    """Fill the feature cache once, so that every job only reads."""
    bank = FeatureBank(load_backbone("lite", device=args.device))
    for name in args.targets:
        target = open_dataset(name, args.root)
        bank.encode(target.root, target.split(args.split))
    for name in args.dataset:
        dataset = open_dataset(name, args.root)
        bank.encode(dataset.root, dataset.split(args.split))
        for shots, seed in product(args.shots, args.seeds):
            drawn = draw(dataset, shots, seed).train
            bank.encode(dataset.root, drawn)


_kept: dict[tuple[str, str, str], Any] = {}


def evaluation(name: str, root: Path, split: str, device: str) -> tuple[Any, FeatureBank, Features]:
    """Dataset, bank and evaluation features, once a process."""
    key = (name, split, device)
    if key not in _kept:
        torch.set_num_threads(1 if device != "cpu" else torch.get_num_threads())
        bank = FeatureBank(load_backbone("lite", device=device), progress=False)
        dataset = open_dataset(name, root)
        _kept[key] = dataset, bank, bank.encode(dataset.root, dataset.split(split)).to(device)
    return _kept[key]


def one(job: dict[str, Any], root: Path, device: str) -> list[dict[str, Any]]:
    """Tune once and score, on every target besides."""
    dataset, bank, features = evaluation(job["dataset"], root, job["split"], device)
    targets = {f" to {name}": evaluation(name, root, job["split"], device) for name in job["targets"]}
    start = time.perf_counter()
    if job["words"] == ["zero-shot"]:
        places = {"": (dataset, bank, features)} | targets
        return [
            {
                **job,
                "dataset": job["dataset"] + where,
                **score(zero_shot(bank.backbone, tested.classes, tested.template), seen),
                "seconds": time.perf_counter() - start,
            }
            for where, (tested, _, seen) in places.items()
        ]
    options = dict(
        word.split("=", 1) for word in job["words"] if word.startswith(("preset=", "variant=", "method="))
    )
    words = [word for word in job["words"] if not word.startswith(("preset=", "variant=", "method="))]
    kind = find_method(options.get("method", "pbprompt"))
    config = make_config(kind, options.get("preset", "default"), options.get("variant", ""), words)
    drawn = draw(dataset, job["shots"], job["seed"])
    few = drawn.apply(dataset)
    to_new = job["task"] == "base-to-new"
    known = base_new(few)[0] if to_new else few
    method, terms = tune(known, bank, kind, config, shots=job["shots"], seed=job["seed"], progress=False)
    found = {
        "": scored(method, dataset, job["split"], bank) if to_new else score(predictive(method), features)
    }
    for where, (target, _, seen) in targets.items():
        method.prepare(target.classes, target.template)
        found[where] = score(predictive(method), seen)
    about = {f"train_{name}": value for name, value in terms.items()} | {"draw": drawn.hash[:12]}
    about["seconds"] = time.perf_counter() - start
    return [
        {**job, "dataset": job["dataset"] + where, **figures, **about} for where, figures in found.items()
    ]


def scored(method: Method, dataset: Dataset, split: str, bank: FeatureBank) -> dict[str, float]:
    """Figures of both halves of the classes, each within its own names, on the benchmark's whole split."""
    figures = {}
    for name, half in zip(("base", "new"), base_new(dataset), strict=True):
        method.prepare(half.classes, half.template)
        seen = score(predictive(method), bank.encode(half.root, half.split(split)))
        figures |= {f"{name}_{key}": value for key, value in seen.items()}
    means = {key: (figures[f"base_{key}"] + figures[f"new_{key}"]) / 2 for key in seen}
    return figures | means | {"accuracy": harmonic_mean(figures["base_accuracy"], figures["new_accuracy"])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", type=Path)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", nargs="+", default=["caltech101", "oxford_pets"])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--split", choices=["val", "test"], default="val")
    tasks = parser.add_mutually_exclusive_group()
    tasks.add_argument("--base-to-new", action="store_true")
    tasks.add_argument("--targets", nargs="+", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    task = "base-to-new" if args.base_to_new else "few-shot"
    keys = ("name", "dataset", "shots", "seed", "split")
    finished = set()
    if args.out.exists():
        finished = {
            (*(record[key] for key in keys), record.get("task", "few-shot"), *record.get("targets", ()))
            for record in map(json.loads, args.out.read_text().splitlines())
        }
    settings = read_settings(args.settings)
    grid = product(args.shots, args.seeds, settings.items(), args.dataset)
    jobs = [
        dict(zip(keys, (name, dataset, shots, seed, args.split), strict=True))
        | {"words": words, "task": task, "targets": args.targets}
        for shots, seed, (name, words), dataset in grid
        if (name, dataset, shots, seed, args.split, task, *args.targets) not in finished
    ]
    prepare(args)
    about = {"commit": commit(), "device": args.device, "backbone": load_backbone("lite").fingerprint[:12]}
    with (
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool,
        args.out.open("a", encoding="utf-8") as out,
    ):
        waiting = [pool.submit(one, job, args.root, args.device) for job in jobs]
        for number, done in enumerate(as_completed(waiting), start=1):
            for record in done.result():
                record |= about
                out.write(json.dumps(record) + "\n")
                line = "{accuracy:.4f} {nll:.3f} {ece:.3f} {seconds:.1f}s".format(**record)
                print(number, len(jobs), *(record[key] for key in keys), line, file=sys.stderr, flush=True)
            out.flush()


if __name__ == "__main__":
    main()
