"""Each part of `conjugate` taken away in turn, on validation images.

    python -m benchmarks.evidence_parts --root DATA --out benchmarks/results/evidence-parts.json

Known classes at 1 to 16 shots (accuracy / NLL / ECE), then new names and all names together after 16 shots of
half of the classes, three draws each. No test image is read. The rows are printed as a table for
`docs/readings-conjugate.md`; the file keeps every figure with the draws' hashes and the commit.
"""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.clip.loading.load import load_backbone
from pbprompt.core import evidence_choice, look_alikes, text_map
from pbprompt.data.fewshot import base_new, draw
from pbprompt.data.items import Dataset, Item
from pbprompt.data.sources import open_dataset
from pbprompt.evaluate.metrics import accuracy, negative_log_likelihood
from pbprompt.evaluate.reliability import expected_calibration_error
from pbprompt.features.bank import FeatureBank, Features
from pbprompt.files import write_text
from pbprompt.methods import conjugate
from pbprompt.methods.base import Method, build_method
from pbprompt.methods.conjugate import Conjugate, ConjugateConfig
from pbprompt.model.predictor import predictive
from pbprompt.runs.provenance import commit

DATA = ("caltech101", "oxford_pets", "flowers102", "grocery:photo", "sample")
SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)


def no_tail(nearest: torch.Tensor, width: int) -> torch.Tensor:
    return torch.ones_like(nearest)


class Part(NamedTuple):
    """What is changed to take it away: settings, and values of modules."""

    settings: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    patches: tuple[tuple[ModuleType, str, Any], ...] = ()


PARTS = {
    "all parts": Part(),
    "look-alikes not left out together": Part(patches=((look_alikes, "NEAR", 0.0),)),
    "Gaussian tails": Part(
        patches=((evidence_choice, "tail_factor", no_tail), (conjugate, "tail_factor", no_tail))
    ),
    "T as left-out photographs have it": Part(patches=((evidence_choice, "GROWTH", 0.0),)),
    "names where their texts lie": Part(patches=((text_map, "WORTH", 1e12),)),
    "the data's sentence alone": Part({"prior": "sentence"}),
    "general sentences alone": Part({"prior": "ensemble"}),
    "no gate": Part({"gate": False}),
}


class Bank:
    """Features by item, encoded or read once."""

    def __init__(self, backbone: Backbone) -> None:
        self.bank, self.kept = FeatureBank(backbone), dict[str, tuple[torch.Tensor, torch.Tensor]]()

    def __call__(self, dataset: Dataset, items: tuple[Item, ...]) -> Features:
        missing = [item for item in items if item.path not in self.kept]
        if missing:
            found = self.bank.encode(dataset.root, missing)
            for row, item in enumerate(missing):
                self.kept[item.path] = found.global_[row].clone(), found.patches[row, :0].clone()
        features, patches = zip(*(self.kept[item.path] for item in items), strict=True)
        labels = torch.tensor([item.label for item in items])
        return Features(torch.stack(features), torch.stack(patches), labels)


def fitted(backbone: Backbone, dataset: Dataset, images: Features, settings: dict[str, Any]) -> Method:
    method = build_method(Conjugate, ConjugateConfig(**settings), backbone, seed=0)
    method.prepare(dataset.classes, dataset.template)
    method.begin(Encoded(images.global_, images.patches), images.labels, seed=0)
    method.finish()
    return method


def figures(method: Method, images: Features, labels: torch.Tensor) -> list[float]:
    """Accuracy and ECE in %, NLL between them."""
    said = predictive(method)(Encoded(images.global_, images.patches)).probabilities.double()
    error = expected_calibration_error(said, labels)
    return [100 * accuracy(said, labels), negative_log_likelihood(said.log(), labels), 100 * error]


def measured(backbone: Backbone, bank: Bank, dataset: Dataset, settings: dict[str, Any]) -> dict[str, Any]:
    """Every figure of one dataset, averaged over the draws."""
    rows: dict[str, list[list[float]]] = {}
    hashes = []
    base, new = base_new(dataset)
    val = bank(dataset, dataset.val)
    for seed in SEEDS:
        for shots in SHOTS:
            drawn = draw(dataset, shots, seed)
            hashes.append(drawn.hash)
            method = fitted(backbone, dataset, bank(dataset, drawn.train), settings)
            rows.setdefault(f"{shots}", []).append(figures(method, val, val.labels))
        half, _ = base_new(draw(dataset, 16, seed).apply(dataset))
        method = fitted(backbone, half, bank(half, half.train), settings)
        known, unknown = bank(base, base.val), bank(new, new.val)
        method.prepare(new.classes, dataset.template)
        rows.setdefault("new", []).append(figures(method, unknown, unknown.labels))
        method.prepare((*base.classes, *new.classes), dataset.template)
        labels = torch.cat([known.labels, unknown.labels + len(base.classes)])
        together = Features.concatenate([known, unknown])
        rows.setdefault("joint", []).append(figures(method, together, labels))
    means = {name: [mean(column) for column in zip(*each, strict=True)] for name, each in rows.items()}
    return {"figures": means, "draws": hashes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    at, backbone = commit(), load_backbone("lite")  # of the code that runs, whatever is checked out later
    bank = Bank(backbone)
    datasets = {name: open_dataset(name, given.root) for name in DATA}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    columns = [*(str(shots) for shots in SHOTS), "new", "joint"]
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name, part in PARTS.items():
        with ExitStack() as stack:
            for module, constant, value in part.patches:
                stack.enter_context(mock.patch.object(module, constant, value))
            found[name] = {
                data: measured(backbone, bank, dataset, part.settings) for data, dataset in datasets.items()
            }
        cells = []
        for column in columns:
            each = [one["figures"][column] for one in found[name].values()]
            acc, nll, ece = (mean(values) for values in zip(*each, strict=True))
            cells.append(f"{acc:.1f} / {nll:.3f} / {ece:.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    record = {"commit": at, "backbone": "lite", "seeds": SEEDS, "parts": found}
    write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
