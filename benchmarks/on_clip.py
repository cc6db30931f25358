"""The default on features of real CLIP models, beside names alone, names with GDA, and logistic regression.

    python -m benchmarks.on_clip --features FOLDER --out benchmarks/results/on-clip.json

FOLDER holds `caltech101.npz` and `stanford_cars.npz`: image features of OpenAI's ViT-B/32 and ViT-B/16, of
length 1 (`vitb32_val`, `val_y`, …), and text of the names (`vitb32_text`; `vitb32_named`: the classes that
have one). On Caltech101 photographs are drawn from the validation split and the test split judges; cars have
no test rows: drawn from the validation split, judged by the rest of it. Names alone have the temperature that
suits the judging images best, and so has the mix of names and GDA its two weights: bounds that no one can
know. Logistic regression has C = 10.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.evidence_parts import figures
from pbprompt import EvidenceClassifier
from pbprompt.evidence.rivals.gda import gaussian_discriminant
from pbprompt.evidence.weights import fit_weights
from pbprompt.files import write_text
from pbprompt.research.runs.provenance import commit

SCALE = 100.0
SEEDS = (1, 2, 3)
SHOTS = (1, 2, 4, 8)
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


class Source(NamedTuple):
    """Images to draw from, and to judge by; the judging ones are what is left where they are the same."""

    title: str
    train: Rows
    held_out: Rows | None
    texts: NDArray[np.float32]

    def draw(self, shots: int, seed: int) -> tuple[Rows, Rows]:
        (x, y), chance = self.train, np.random.default_rng(seed)
        own = (np.flatnonzero(y == c) for c in range(len(self.texts)))
        rows = np.concatenate([chance.permutation(each)[:shots] for each in own])
        rest = np.setdiff1d(np.arange(len(y)), rows)
        return (x[rows], y[rows]), self.held_out or (x[rest], y[rest])


def sources(folder: Path) -> list[Source]:
    found = []
    caltech, cars = (np.load(folder / f"{name}.npz") for name in ("caltech101", "stanford_cars"))
    for net, title in (("vitb32", "ViT-B/32"), ("vitb16", "ViT-B/16")):
        named = np.sort(caltech[f"{net}_named"])
        train, held_out = (
            some(caltech[f"{net}_{part}"], caltech[f"{part}_y"], named) for part in ("val", "test")
        )
        found.append(Source(f"Caltech101, {title}", train, held_out, caltech[f"{net}_text"][named]))
    every = np.arange(len(cars["classnames"]))
    train = some(cars["vitb32_val"], cars["val_y"], every)
    found.append(Source("StanfordCars, ViT-B/32", train, None, cars["vitb32_text"]))
    return found


def some(x: NDArray[Any], y: NDArray[Any], classes: NDArray[Any]) -> Rows:
    rows = np.isin(y, classes)
    return x[rows].astype(np.float32), np.searchsorted(classes, y[rows])


def best(tables: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """Probabilities by the weights that suit the judging images best."""
    scores = torch.stack([table.double() for table in tables])
    usual = torch.tensor([1 / float(table.var(1).mean().sqrt()) for table in scores]).double()
    weights = fit_weights(scores, labels, usual).best
    return torch.einsum("e,enk->nk", weights, scores).softmax(1)


def measured(source: Source, shots: int, seed: int) -> dict[str, list[float]]:
    (x, y), (z, truth) = source.draw(shots, seed)
    labels, texts = torch.from_numpy(truth), source.texts.astype(np.float32)
    by_name = torch.from_numpy(z @ (texts - texts.mean(0)).T) * SCALE
    fitted = gaussian_discriminant(torch.from_numpy(x).double(), torch.from_numpy(y))
    gda = fitted.logits(torch.from_numpy(z).double())
    said = {
        "default": EvidenceClassifier(texts, SCALE).fit(x, y).predict_proba(z),
        "logistic regression": LogisticRegression(C=10.0, max_iter=200).fit(x, y).predict_proba(z),
        "default, no names": EvidenceClassifier().fit(x, y).predict_proba(z),
    }
    found = {name: figures(torch.as_tensor(table).double(), labels) for name, table in said.items()}
    found["names alone, best temperature"] = figures(best([by_name], labels), labels)
    found["names and GDA, best mix"] = figures(best([by_name, gda], labels), labels)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"commit": commit(), "seeds": SEEDS, "figures": {}}
    for source in sources(given.features):
        least = np.bincount(source.train[1]).min() - (source.held_out is None)
        shots = [n for n in SHOTS if n <= max(4, least)]
        print(f"\n| {source.title} | " + " | ".join(map(str, shots)) + " |\n|" + "---|" * (len(shots) + 1))
        of: dict[str, dict[int, list[list[float]]]] = {}
        for n in shots:
            for seed in SEEDS:
                for name, row in measured(source, n, seed).items():
                    of.setdefault(name, {}).setdefault(n, []).append(row)
        for name, by_shots in of.items():
            cells = [[fmean(column) for column in zip(*rows, strict=True)] for rows in by_shots.values()]
            shown = [f"{accuracy:.1f} / {nll:.3f} / {ece:.1f}" for accuracy, nll, ece in cells]
            print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
        record["figures"][source.title] = of
    write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
