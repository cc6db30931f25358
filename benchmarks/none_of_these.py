"""What tells images of none of the classes: the default's own score beside those of the literature.

    python -m benchmarks.none_of_these --root DATA --part test --out benchmarks/results/none-of-these.json
    python -m benchmarks.none_of_these --show benchmarks/results/none-of-these.json

Every score is of the same features of `lite`, by models of the same photographs. Images of none of the
classes are those of other datasets ("far"), or of the half of the classes that the models were not given
("near"). AUROC in %, none of them tuned:

| score               | higher for images of the classes                                                    |
|---------------------|-------------------------------------------------------------------------------------|
| conjugate           | its p-value, `familiarity` (`--none-at`)                                            |
| maximum probability | of conjugate (Hendrycks & Gimpel, ICLR 2017)                                        |
| energy              | log Σ exp of the logits of the linear probe (Liu et al., NeurIPS 2020)               |
| MCM                 | maximum softmax of the cosines to the names, at temperature 1 (Ming et al., 2022)   |
| kNN                 | −distance to the 10th nearest photograph (Sun et al., ICML 2022)                     |
| Mahalanobis         | −distance to the nearest class mean under one shrunk covariance (Lee et al., 2018)  |
| relative            | the same less the distance under one Gaussian of all photographs (Ren et al., 2021) |
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.problems import NARROW, Labelled, Problem, answers, bank, fitted, problem, split
from pbprompt import markdown
from pbprompt.evidence.rivals.linear import class_means, shrunk_precision
from pbprompt.files import write_text
from pbprompt.learners.method import build_method, make_config
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.model.metrics.selective import auroc
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit
from pbprompt.vision.similarity import unit

SHOTS = (4, 16)
SEEDS = (1, 2, 3)
NEIGHBOUR = 10
PROBLEMS = (*((name, "narrow") for name in NARROW), ("oxford_pets", "5"), ("flowers102", "10"))
OTHERS = ("caltech101", "oxford_pets", "flowers102", "grocery:photo", "pacs")


class Scores:
    """All scores of one set of labelled photographs; higher: more like their classes."""

    def __init__(self, classes: tuple[str, ...], template: str, photographs: Labelled) -> None:
        self.conjugate = fitted(classes, template, photographs)
        self.x = unit(photographs.images).double()
        self.means = class_means(self.x, photographs.labels)
        self.precision = shrunk_precision(self.x - self.means[photographs.labels])
        self.overall = shrunk_precision(self.x - self.x.mean(0))
        kind = find_method("linear-probe")
        self.probe = build_method(kind, make_config(kind), bank().backbone, seed=0)
        self.probe.prepare(classes, template)
        self.probe.begin(photographs.encoded, photographs.labels)
        self.names = unit(sentence_features(bank().backbone, classes, template)).double()

    def __call__(self, images: Labelled) -> dict[str, Float[Tensor, " n"]]:
        x = unit(images.images).double()
        own = self.conjugate.fitted.familiarity(images.encoded)
        logits = self.probe.sample_logits(images.encoded, self.probe.class_features(1, torch.Generator()))[0]
        near = _squared(x, self.means, self.precision).amin(1)
        far = _squared(x, self.x.mean(0, keepdim=True), self.overall).squeeze(1)
        kth = min(NEIGHBOUR, len(self.x))
        found = {
            "maximum probability": answers(self.conjugate, images).amax(1),
            "energy": logits.logsumexp(1),
            "MCM": (x @ self.names.T).softmax(1).amax(1),
            "kNN": -torch.cdist(x, self.x).kthvalue(kth, dim=1).values,
            "Mahalanobis": -near,
            "relative": far - near,
        }
        return {"conjugate": own, **found} if own is not None else found


def _squared(
    x: Float[Tensor, "n d"], means: Float[Tensor, "k d"], precision: Float[Tensor, "d d"]
) -> Float[Tensor, "n k"]:
    """(x − μ)ᵀP(x − μ)."""
    left, right = x @ precision, means @ precision
    return (left * x).sum(1, keepdim=True) - 2 * left @ means.T + (right * means).sum(1)


def told(inside: dict[str, Tensor], outside: dict[str, Tensor]) -> dict[str, float]:
    """AUROC of each score, in %."""
    found = {}
    for name, own in inside.items():
        both = torch.cat([own, outside[name]]).float()
        found[name] = 100 * auroc(-both.numpy(), (torch.arange(len(both)) >= len(own)).numpy())
    return found


def halved(given: Problem) -> tuple[Problem, Labelled]:
    """The first half of the classes as a problem, and the held-out images of the others."""
    known = -(-len(given.classes) // 2)
    train, held = (Labelled(p.images[p.labels < known], p.labels[p.labels < known]) for p in given[2:])
    rest = given.held_out.labels >= known
    others = Labelled(given.held_out.images[rest], given.held_out.labels[rest])
    return Problem(given.classes[:known], given.template, train, held), others


def measured(name: str, kind: str, shots: int, seed: int, root: Path, part: str) -> dict[str, Any]:
    whole = problem(name, kind, root, part, seed)
    scores = Scores(whole.classes, whole.template, whole.draw(shots, seed))
    inside = scores(whole.held_out)
    far = {
        other: told(inside, scores(split(other, root, part)))
        for other in OTHERS
        if other != name.partition(":")[0] and other != name
    }
    half, others = halved(whole)
    scores = Scores(half.classes, half.template, half.draw(shots, seed))
    near = told(scores(half.held_out), scores(others))
    return {"data": name, "kind": kind, "shots": shots, "seed": seed, "far": far, "near": near}


def shown(rows: list[dict[str, Any]]) -> str:
    """Means over sets and draws, the worst pair of datasets, and the half of the classes left out."""
    table = []
    heads = ["AUROC in %"]
    columns = []
    for shots in SHOTS:
        for kind in ("narrow", "broad"):
            own = [
                row
                for row in rows
                if row["shots"] == shots and (row["kind"] == "narrow") == (kind == "narrow")
            ]
            heads += [f"{kind}, {shots} shots: far", "worst pair", "near"]
            columns.append(own)
    for name in rows[0]["far"][next(iter(rows[0]["far"]))]:
        cells = [name]
        for own in columns:
            far = [one[name] for row in own for one in row["far"].values() if name in one]
            near = [row["near"][name] for row in own if name in row["near"]]
            cells += [f"{fmean(far):.1f}", f"{min(far):.1f}", f"{fmean(near):.1f}"]
        table.append(cells)
    return markdown.table(heads, table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--part", choices=["val", "test"], default="val")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        print(shown(json.loads(options.show.read_text(encoding="utf-8"))["rows"]))
        return
    torch.set_num_threads(1)
    rows = [
        measured(name, kind, shots, seed, options.root, options.part)
        for name, kind in PROBLEMS
        for shots in SHOTS
        for seed in SEEDS
    ]
    facts = {"part": options.part, "commit": commit(), "seeds": SEEDS, "backbone": "lite"}
    if options.out:
        write_text(options.out, json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(shown(rows))


if __name__ == "__main__":
    main()
