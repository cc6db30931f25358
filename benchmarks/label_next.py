"""How many labels does choosing them save? A simulation of `pbprompt next` on photographs.

    python -m benchmarks.label_next run --root DATA --results benchmarks/results/label-next.json
    python -m benchmarks.label_next report benchmarks/results/label-next.json \\
        --write benchmarks/results/label-next.md

The training images are the pool, their labels hidden. A run starts with one image of each class; each round
`conjugate` is fitted to what is labelled, and 50 more images are chosen by a rule. Every fit is scored on
the validation split, which chooses the default rule, and on the test split, which is reported.
`run` goes on where it was stopped.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.apps.labelling.next_images import RULES, By, choose_rows, margin_doubt
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.markdown import table
from pbprompt.model.predictor import Predictor, predictive
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit
from pbprompt.seeding import stream
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.load import load_backbone

DATASETS = ("caltech101", "oxford_pets", "flowers102", "grocery")
SEEDS = (1, 2, 3, 4, 5)
A_ROUND, ROUNDS = 50, 12
ENOUGH = 0.95  # of the accuracy with all labels
SPLITS = ("val", "test")
START, END = "<!-- made by python -m benchmarks.label_next -->\n", "<!-- end -->\n"
FIGURE = Path("docs/images/label-next.svg")


class Pool:
    """A dataset's features, and `conjugate` fitted to some of its training images."""

    def __init__(self, name: str, root: str | None) -> None:
        self.dataset = open_dataset(name, root)
        if self.dataset.home:  # photographs alone, where there are other domains
            self.dataset = self.dataset.only(self.dataset.home)
        self.backbone = load_backbone("lite")
        bank = FeatureCache(self.backbone, progress=False)
        encoded = {
            split: bank.encode(self.dataset.root, self.dataset.split(split)) for split in ("train", *SPLITS)
        }
        self.images = {split: _encoded(part.global_) for split, part in encoded.items()}
        self.labels = {split: part.labels for split, part in encoded.items()}
        kind = find_method("conjugate")
        self.method = build_method(kind, kind.Config(), self.backbone, seed=0)
        self.method.prepare(self.dataset.classes, self.dataset.template)

    def fit(self, rows: Tensor) -> Predictor:
        """Good until the next fit: names are read once."""
        method = self.method
        with torch.no_grad():
            method.begin(_encoded(self.images["train"].global_[rows]), self.labels["train"][rows])
        return predictive(method)

    def accuracies(self, predictor: Predictor) -> list[float]:
        """On the validation and on the test split."""
        right = (
            predictor(self.images[split]).probabilities.argmax(1) == self.labels[split] for split in SPLITS
        )
        return [float(one.float().mean()) for one in right]


def _encoded(global_: Tensor) -> Encoded:
    return Encoded(global_, global_.unsqueeze(1))


@cache
def pool(name: str, root: str | None) -> Pool:
    torch.set_num_threads(1)
    return Pool(name, root)


def simulate(name: str, root: str | None, by: By | None, seed: int) -> list[list[float]]:
    """[labels, accuracy on val, on test] of each round; without a rule, of all labels."""
    data = pool(name, root)
    images, labels = data.images["train"].global_, data.labels["train"]
    if by is None:
        return [[len(labels), *data.accuracies(data.fit(torch.arange(len(labels))))]]
    order = torch.randperm(len(labels), generator=stream(seed, "start"))
    known = torch.stack([order[labels[order] == label][0] for label in labels.unique()])
    curve = []
    for turn in range(ROUNDS + 1):
        predictor = data.fit(known)
        curve.append([len(known), *data.accuracies(predictor)])
        if turn == ROUNDS:
            break
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[known] = False
        rows = rest.nonzero().squeeze(1)
        said = predictor(_encoded(images[rows]))
        doubt = said.mutual_information if by == "epistemic" else margin_doubt(said.probabilities)
        chosen = choose_rows(images[rows], doubt, A_ROUND, by, stream(seed, by, turn))
        known = torch.cat([known, rows[chosen]])
    return curve


def run(root: str | None, results: Path, processes: int, seeds: Sequence[int] = SEEDS) -> None:
    """Every run that the results lack; each is kept as it ends."""
    kept: dict[str, Any] = {"commit": commit(), "curves": {}}
    if results.exists():
        kept = json.loads(results.read_text())
    wanted: list[tuple[str, By | None, int]] = [(name, None, 0) for name in DATASETS]
    wanted += [(name, by, seed) for seed in seeds for name in DATASETS for by in RULES]
    missing = [one for one in wanted if _key(*one) not in kept["curves"]]
    with ProcessPoolExecutor(processes) as workers:
        futures = {_key(*one): workers.submit(simulate, one[0], root, one[1], one[2]) for one in missing}
        for key, future in futures.items():
            kept["curves"][key] = future.result()
            write_text(results, json.dumps(kept, indent=0) + "\n")
            print(key, kept["curves"][key][-1], file=sys.stderr, flush=True)


def _key(name: str, by: str | None, seed: int) -> str:
    return f"{name} {by or 'all labels'} {seed}"


# What it says


def labels_needed(curve: Sequence[Sequence[float]], column: int, target: float) -> float:
    """Labels at which the accuracy first reaches the target, between two rounds by a line.

    A run that never does needs at least all that it had: that many are returned.
    """
    before = curve[0]
    for point in curve:
        if point[column] >= target:
            if point is before:
                return point[0]
            share = (target - before[column]) / (point[column] - before[column])
            return before[0] + share * (point[0] - before[0])
        before = point
    return curve[-1][0]


def needed(curves: dict[str, Any], split: str) -> dict[str, dict[str, NDArray[np.float64]]]:
    """dataset -> rule -> labels needed with each seed."""
    column = 1 + SPLITS.index(split)
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for name in DATASETS:
        target = ENOUGH * curves[_key(name, None, 0)][0][column]
        found[name] = {
            by: np.array([labels_needed(curves[_key(name, by, seed)], column, target) for seed in SEEDS])
            for by in RULES
        }
    return found


def paired_interval(values: NDArray[np.float64], resamples: int = 10_000) -> tuple[float, float, float]:
    """The mean of figures [dataset, seed], each paired with random choice already, and its 95 % interval.

    Seeds are drawn anew within each dataset.
    """
    picks = np.random.default_rng(0).integers(values.shape[1], size=(resamples, *values.shape))
    means = np.take_along_axis(values[None], picks, axis=2).mean((1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def gained(curves: dict[str, Any], split: str, by: str) -> NDArray[np.float64]:
    """Accuracy over random choice, mean over the rounds in points, [dataset, seed]."""
    column = 1 + SPLITS.index(split)

    def mean(name: str, rule: str, seed: int) -> float:
        return float(np.mean([point[column] for point in curves[_key(name, rule, seed)][1:]]))

    return np.array(
        [[100 * (mean(name, by, seed) - mean(name, "random", seed)) for seed in SEEDS] for name in DATASETS]
    )


def report(kept: dict[str, Any]) -> str:
    curves = kept["curves"]
    titles = {"val": "On the validation splits, which choose the default", "test": "On the test splits"}
    parts = []
    for split, title in titles.items():
        labels, rows = needed(curves, split), []
        for by in RULES:
            cells = [_labels_cell(labels[name][by], _most(curves, name)) for name in DATASETS]
            against = ["–", "–"]
            if by != "random":
                saved = np.stack([1 - rules[by] / rules["random"] for rules in labels.values()])
                against = [
                    _interval(paired_interval(100 * saved), " %"),
                    _interval(paired_interval(gained(curves, split, by)), ""),
                ]
            rows.append((f"`{by}`", *cells, *against))
        head = ("rule", *DATASETS, "labels saved", "points gained")
        parts.append(f"{title}: labels needed for {ENOUGH:.0%} of the accuracy with all labels.")
        parts.append(table(head, rows, figures=True))
    column = 1 + SPLITS.index("test")
    rows = [
        (
            f"`{by}`",
            *(
                f"{100 * np.mean([curves[_key(name, by, seed)][-1][column] for seed in SEEDS]):.1f}"
                for name in DATASETS
            ),
        )
        for by in RULES
    ]
    full = [f"{100 * curves[_key(name, None, 0)][0][column]:.1f}" for name in DATASETS]
    parts.append("Test accuracy in % at the end of the rounds, and with the labels of all training images.")
    parts.append(table(("rule", *DATASETS), [*rows, ("all labels", *full)], figures=True))
    seeds = f"seeds {SEEDS[0]} to {SEEDS[-1]}, {A_ROUND} labels a round, {ROUNDS} rounds"
    made = f"`python -m benchmarks.label_next`, `lite`, {seeds}, commit {kept['commit'] or 'unknown'}"
    return "\n\n".join([f"Made by {made}.", *parts])


def _most(curves: dict[str, Any], name: str) -> int:
    return int(curves[_key(name, "random", SEEDS[0])][-1][0])


def _labels_cell(labels: NDArray[np.float64], most: int) -> str:
    """The mean; with a sign where runs ended below the mark, which count as if they reached it at the end."""
    short = int((labels >= most).sum())
    return f"{'> ' if short == len(labels) else '≥ ' if short else ''}{labels.mean():.0f}"


def _interval(values: tuple[float, float, float], unit: str) -> str:
    mean, low, high = values
    return f"{mean:.1f}{unit} ({low:.1f} to {high:.1f})"


def draw(kept: dict[str, Any], out: Path) -> None:
    """Test accuracy against labels, a panel for each dataset, mean over seeds."""
    from pbprompt.apps.pages.plots import COLOURS, DASHES, new_axes, save, styled

    @styled
    def make() -> Any:
        figure, panels = new_axes(9.2, 2.6, "", ncols=len(DATASETS))
        for axes, name in zip(panels, DATASETS, strict=True):
            for by, colour, dash in zip(RULES, COLOURS, DASHES, strict=False):
                runs = np.array([kept["curves"][_key(name, by, seed)] for seed in SEEDS])
                axes.plot(runs[0, :, 0], 100 * runs[:, :, 2].mean(0), dash, color=colour, label=by)
            axes.axhline(100 * ENOUGH * kept["curves"][_key(name, None, 0)][0][2], color="#888888", lw=0.8)
            axes.set_title(name, loc="left")
            axes.set_xlabel("Labels")
        panels[0].set_ylabel("Accuracy (%)")
        panels[-1].legend(loc="lower right", fontsize=8)
        return figure

    save(make(), out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("--root", help="where the benchmarks are")
    running.add_argument("--results", type=Path, required=True)
    running.add_argument("--processes", type=int, default=2)
    running.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    reporting = verbs.add_parser("report")
    reporting.add_argument("results", type=Path)
    reporting.add_argument("--write", type=Path, help="a page whose marked part the tables replace")
    given = parser.parse_args()
    if given.verb == "run":
        run(given.root, given.results, given.processes, given.seeds)
        return
    kept = json.loads(given.results.read_text())
    text = report(kept)
    print(text)
    if given.write:
        draw(kept, FIGURE)
        before, _, rest = given.write.read_text(encoding="utf-8").partition(START)
        write_text(given.write, f"{before}{START}\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
