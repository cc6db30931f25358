"""What photographs without labels are worth: the default model with them and without, and others with them.

    python -m benchmarks.unlabelled --root DATA --part test --out benchmarks/results/unlabelled.json
    python -m benchmarks.unlabelled --root DATA --part test --together --out benchmarks/results/together.json
    python -m benchmarks.unlabelled --show benchmarks/results/unlabelled.json

DATA has images, or features that `benchmarks/problems.py` wrote. The default model is judged on the held-out
part, without a pool and with each of `benchmarks/unlabelled_pools.py`; what others make of the plain pool (at
most 4,000 photographs of it) is in `benchmarks/unlabelled_peers.py`. Without any shot there are names alone,
beside zero-shot.

`--together`: the held-out photographs themselves are the pool, all of them and a choice of skewed sizes.

Accuracy and ECE in %, and NLL; in brackets the difference to the default model without a pool (without shots:
to zero-shot) with its 95 % interval, the images and the draws resampled within each dataset.
"""

import argparse
import json
import sys
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.problems import BROAD, NARROW, Labelled, Problem, answers, bank, figures, problem, split
from benchmarks.study.resampling import resampled_ece
from benchmarks.unlabelled_peers import BY_NAMES, PEERS, Given
from benchmarks.unlabelled_pools import FOREIGN, drawn, pools, skewed, zipf
from pbprompt import markdown
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.unlabelled import PER_CLASS
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.model.metrics.resampling import Counts, image_counts, interval, resampled_mean, seed_shares
from pbprompt.research.provenance import commit
from pbprompt.vision.similarity import unit

SHOTS = (0, 1, 2, 4, 8, 16)
PROBLEMS = (
    *((name, "narrow") for name in (*NARROW, "pacs")),
    *((name, str(groups)) for name, groups in BROAD),
)
FOR_PEERS = 4000  # photographs of a pool
RESAMPLES = 1000
METRICS = {"accuracy": 1, "NLL": 3, "ECE": 1}  # and their digits


class Asked(NamedTuple):
    """One problem and draw."""

    data: str
    kind: str
    shots: int
    seed: int
    root: Path
    part: str
    together: bool


def fitted(given: Problem, few: Labelled, pool: Tensor | None, *, together: bool = False) -> Conjugate:
    """The default model of these photographs, or of the names alone."""
    method = build_method(Conjugate, ConjugateConfig(), bank().backbone, seed=0)
    method.prepare(given.classes, given.template)
    if len(few.labels):
        method.begin(few.encoded, few.labels, unlabelled=None if together else pool)
        if together and pool is not None:
            method.add_unlabelled(pool, to_classify=True)
    elif pool is not None:
        method.begin_by_names(pool)
    return method


def rows_of(
    given: Problem, few: Labelled, by_name: dict[str, Tensor], together: bool, seed: int
) -> Iterator[tuple[str, Tensor, float]]:
    """Name, answers on the held-out part, and how many photographs a pool counts as."""
    without, scale = fitted(given, few, None), float(bank().backbone.logit_scale)
    texts, new = without.sight.read(given.classes).double(), unit(given.held_out.images.double())
    if len(few.labels):
        yield "without", answers(without, given.held_out), 0.0
    else:
        yield "without", (scale * new @ texts.T).softmax(1), 0.0
    for name, pool in by_name.items():
        if not len(few.labels) and len(pool) < PER_CLASS * len(given.classes):
            continue  # is refused
        method = fitted(given, few, pool, together=together)
        assert method.absorbed
        yield name, answers(method, given.held_out), method.absorbed.weight
    pool = unit(next(iter(by_name.values())).double())
    if not together:
        pool = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))[:FOR_PEERS]]
    known = Given(unit(few.images.double()), few.labels, pool, texts, scale)
    for name in PEERS if len(few.labels) else BY_NAMES:
        found = PEERS[name](known)
        yield name, found.shares if together else found.answers(new), 0.0


@lru_cache(4)
def counts_of(images: int, name: str) -> Counts:
    return image_counts(images, RESAMPLES, zlib.crc32(name.encode()))


def resampled(said: Tensor, labels: Tensor, counts: Counts) -> NDArray[np.float64]:
    """`figures` in every resample, [3, r]."""
    sure, guess = said.max(1)
    right = (guess == labels).double()
    likely = said.gather(1, labels.unsqueeze(1)).squeeze(1).clamp_min(1e-38).log()
    error = resampled_ece(sure.numpy(), right.numpy(), counts)
    means = (resampled_mean(values.numpy(), counts) for values in (100 * right, -likely))
    return np.stack([*means, 100 * error])


def measured(asked: Asked) -> list[tuple[dict[str, Any], dict[str, NDArray[np.float64]]]]:
    """Figures, and those of the resamples; of `--together`, on both choices of held-out photographs."""
    started, data, seed = time.perf_counter(), asked.data, asked.seed
    whole = problem(data, asked.kind, asked.root, asked.part, seed)
    few, rest = drawn(whole, asked.shots, seed)
    cases = {"all": whole}
    if asked.together:
        (images, labels), chance = whole.held_out, torch.Generator().manual_seed(0)
        chosen = skewed(labels, zipf(labels, len(whole.classes)), chance)
        cases["skewed"] = whole._replace(held_out=Labelled(images[chosen], labels[chosen]))
    found = []
    for case, one in cases.items():
        if asked.together:
            by_name = {"together": one.held_out.images}
        else:
            by_name = pools(one, rest, split(FOREIGN[data], asked.root, "train").images, seed)
        labels = one.held_out.labels
        counts = counts_of(len(labels), f"{data} {case}")
        told: dict[str, list[float]] = {}
        vectors, weights = {}, {}
        for name, said, weight in rows_of(one, few, by_name, asked.together, seed):
            told[name], vectors[name] = figures(said, labels), resampled(said, labels, counts)
            if name in by_name:
                weights[name] = weight
        row = {"data": data, "kind": asked.kind, "shots": asked.shots, "seed": seed, "held out": case}
        found.append((row | {"figures": told, "pool counts as": weights}, vectors))
    found[0][0]["seconds"] = round(time.perf_counter() - started, 1)
    return found


def group(row: dict[str, Any]) -> str:
    return "narrow" if row["data"] != "pacs" and row["kind"] == "narrow" else "broad"


def summary(
    rows: list[dict[str, Any]], vectors: list[dict[str, NDArray[np.float64]]]
) -> list[dict[str, Any]]:
    """Means over a group's problems and draws, and differences to no pool with their intervals."""
    places: dict[tuple[Any, ...], dict[tuple[str, str], list[int]]] = {}
    for place, row in enumerate(rows):
        for name in row["figures"]:
            key = (group(row), row["held out"], row["shots"], name)
            places.setdefault(key, {}).setdefault((row["data"], row["kind"]), []).append(place)
    found = []
    for (kind, held_out, shots, name), problems in places.items():
        means, gains, spread = [], [], []
        for (data, _), draws in problems.items():
            own, base = (np.array([rows[at]["figures"][each] for at in draws]) for each in (name, "without"))
            gain = np.stack([vectors[at][name] - vectors[at]["without"] for at in draws])
            shares = seed_shares(len(draws), RESAMPLES, zlib.crc32(data.encode()))
            means.append(own.mean(0))
            gains.append((own - base).mean(0))
            spread.append(np.einsum("rs,smr->mr", shares, gain))
        used = [rows[at]["pool counts as"].get(name, 0) > 0 for draws in problems.values() for at in draws]
        row = {"group": kind, "held out": held_out, "shots": shots, "row": name, "used": fmean(used)}
        mean, gain, resamples = (np.mean(each, axis=0) for each in (means, gains, spread))
        for at, metric in enumerate(METRICS):
            row[metric] = [float(mean[at]), float(gain[at]), *interval(resamples[at])]
        found.append(row)
    return found


def shown(found: list[dict[str, Any]]) -> str:
    """A table for each group, choice of held-out photographs and metric, and what pools were used."""
    parts = []
    for kind, held_out in dict.fromkeys((row["group"], row["held out"]) for row in found):
        own = {
            (row["row"], row["shots"]): row
            for row in found
            if (row["group"], row["held out"]) == (kind, held_out)
        }
        names, sizes = list(dict.fromkeys(name for name, _ in own)), sorted({shots for _, shots in own})
        for metric in (*METRICS, "used"):
            table = [
                [name, *(cell(own.get((name, shots)), metric) for shots in sizes)]
                for name in names
                if metric != "used" or name not in ("without", *PEERS)
            ]
            title = "pool used in %" if metric == "used" else metric
            head = f"{kind} classes, {held_out} held out: {title}"
            parts.append(markdown.table([head, *map(str, sizes)], table))
    return "\n\n".join(parts)


def cell(row: dict[str, Any] | None, metric: str) -> str:
    if row is None:
        return "–"
    if metric == "used":
        return f"{100 * row['used']:.0f}"
    forms = [f"{sign}.{METRICS[metric]}f" for sign in ("", "+", "+", "+")]
    mean, gain, low, high = (format(value, form) for value, form in zip(row[metric], forms, strict=True))
    return mean if row["row"] == "without" else f"{mean} ({gain}, {low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--part", default="val", choices=("val", "test"))
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--data", nargs="+", default=list(FOREIGN), choices=list(FOREIGN))
    parser.add_argument("--shots", nargs="+", type=int, default=list(SHOTS), help="0: names alone")
    parser.add_argument("--seeds", type=int, default=3, help="draws, and merges, of each")
    parser.add_argument("--jobs", type=int, default=1, help="problems that are measured at a time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print a file's tables, and measure nothing")
    given = parser.parse_args()
    if given.show:
        print(shown(json.loads(given.show.read_text(encoding="utf-8"))["summary"]))
        return
    if not (given.root and given.out):
        parser.error("give --root and --out, or --show")
    asked = [
        Asked(name, kind, shots, seed, given.root, given.part, given.together)
        for shots in sorted(given.shots, reverse=True)  # those that take long first
        for name, kind in PROBLEMS
        for seed in range(1, given.seeds + 1)
        if name in given.data and (shots or (seed == 1 and kind == "narrow"))
    ]
    at, found = commit(), []
    with Pool(given.jobs, initializer=one_thread) as pool:
        for some in pool.imap(measured, asked):
            found += some
            row = some[0][0]
            told = " ".join(f"{row[key]}" for key in ("data", "kind", "shots", "seed"))
            print(f"{told}: {row['seconds']} s", file=sys.stderr, flush=True)
    rows = [row for row, _ in found]
    means = summary(rows, [vectors for _, vectors in found])
    record = {"commit": at, "part": given.part, "together": given.together, "summary": means, "rows": rows}
    write_text(given.out, json.dumps(record, indent=1) + "\n")
    print(shown(means))


def one_thread() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1)


if __name__ == "__main__":
    main()
