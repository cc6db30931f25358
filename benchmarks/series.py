"""Series of photographs: what is promised and kept, each photograph by itself, and by series found or known.

    python -m benchmarks.bursts DATA FOLDER             # once; and `benchmarks.problems DATA FOLDER`
    python -m benchmarks.series --root FOLDER --out benchmarks/results/series.json
    python -m benchmarks.series --root FOLDER --part val --chances 0.05 0.1 0.2 0.5 1
    python -m benchmarks.series --show benchmarks/results/series.json

FOLDER holds features of `lite`. Of each draw the default model is fitted to photographs, calibrated by them,
each left out in turn (with its series), and judged by the test images; a promise is kept in a draw where so
many of the answers are right. Three kinds of photographs: Grocery's, of the same shelves and shops in unknown
series; bursts of four made of OxfordPets and Flowers102 (`benchmarks/bursts.py`), six of a class; and these
two as they are, without series.

By `none`, each photograph is by itself; `twins` is the default, `near-duplicates` that `--group`, and `true`
is how bursts were made. `--chances` tries others for `evidence/series.py` in place of these, on validation
images. Its `CHANCE` is the largest that costs sets without series, of narrow classes and of broad ones
(breeds merged), less than a point of ECE and 0.01 of NLL: more finds more series where there are some, and
joins what is merely alike where classes are broad.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from benchmarks import bursts
from benchmarks.problems import Labelled, bank, problem
from benchmarks.promises import kept, means
from pbprompt import markdown
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.series import CHANCE, EVEN, find_series
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.model.calibration import calibrate_left_out
from pbprompt.model.metrics.evaluation import summary
from pbprompt.model.predictor import predictive
from pbprompt.model.scoring import log_probabilities
from pbprompt.research.provenance import commit
from pbprompt.vision.similarity import unit

DRAWS = 5
ACCURACIES = (0.8, 0.9, 0.95)
BURSTS = 6  # of a class
REFUSED = 0.05  # --none-at
Groups = Int[Tensor, " n"] | None
SETS: dict[str, tuple[str, str, int | None]] = {
    "grocery, 16": ("grocery:photo", "narrow", 16),
    "grocery, all": ("grocery:photo", "narrow", None),
    "oxford_pets, bursts": ("oxford_pets", "narrow", 0),
    "flowers102, bursts": ("flowers102", "narrow", 0),
    "oxford_pets, 4": ("oxford_pets", "narrow", 4),
    "oxford_pets, 16": ("oxford_pets", "narrow", 16),
    "flowers102, 4": ("flowers102", "narrow", 4),
    "flowers102, 16": ("flowers102", "narrow", 16),
    "cats and dogs, 64": ("oxford_pets", "cats-dogs", 64),
    "oxford_pets in 10, 64": ("oxford_pets", "10", 64),
    "flowers102 in 10, 64": ("flowers102", "10", 64),
}


def found(photographs: Labelled, chance: float) -> Groups:
    groups = find_series(unit(photographs.images.float()), photographs.labels, chance).of
    return groups if len(groups.unique()) < len(groups) else None


def judged(
    classes: tuple[str, ...], template: str, few: Labelled, groups: Groups, new: Labelled
) -> dict[str, Any]:
    """Figures of a model on new images, and how its promises fare there."""
    method = build_method(Conjugate, ConjugateConfig(), bank().backbone, seed=0)
    method.prepare(classes, template)
    method.begin(few.encoded, few.labels, groups=groups)
    predictor = predictive(method)
    said, labels = predictor(new.encoded), new.labels
    figures = summary(log_probabilities(said), labels)
    probabilities = said.probabilities.double()
    top = np.round(probabilities.amax(1).numpy(), 6)
    right = (probabilities.argmax(1) == labels).numpy()
    calibration, familiar = calibrate_left_out(predictor), method.fitted.familiarity(new.encoded)
    assert calibration is not None
    sizes = torch.ones(len(few.labels)) if groups is None else groups.unique(return_counts=True)[1]
    return {
        **{name: figures[name] for name in ("accuracy", "nll", "ece")},
        "promises": {
            str(wanted): kept(float((above & right).sum()), above.sum(), len(top), wanted)
            for wanted in ACCURACIES
            for above in [top >= calibration.threshold(wanted)]
        },
        "none": -1.0 if familiar is None else float((familiar <= REFUSED).float().mean()),
        "in series": float(sizes[sizes > 1].sum() / len(few.labels)),
        "series": float(len(sizes)),
    }


def draw(
    name: str, kind: str, shots: int | None, seed: int, root: Path, part: str
) -> tuple[Any, Labelled, Groups]:
    """The problem, photographs to fit to, and their true series; of shots 0: bursts."""
    whole = problem(name, kind, root, part)
    if shots == 0:
        few = bursts.read(name, root).draw(BURSTS, seed)
        return whole, few.photographs, few.series
    return whole, whole.draw(shots, seed), None


def measured(
    name: str, kind: str, shots: int | None, draws: int, root: Path, part: str, chances: dict[str, float]
) -> Any:
    """Means over draws, by how series are told."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for seed in range(1, (draws if shots is not None else 1) + 1):
        whole, few, true = draw(name, kind, shots, seed, root, part)
        told = {"none": None, **{way: found(few, chance) for way, chance in chances.items()}}
        told |= {} if true is None else {"true": true}
        for way, groups in told.items():
            one = judged(whole.classes, whole.template, few, groups, whole.held_out)
            ways.setdefault(way, []).append(one)
    return {way: means(each) for way, each in ways.items()}


def show(results: dict[str, Any]) -> str:
    heads = ("photographs", "series by", "in series", "accuracy", "NLL", "ECE", "none of these")
    rows = []
    for name, ways in results["sets"].items():
        for way, of in ways.items():
            promises = (
                f"{p['answered']:.0%} / {p['right']:.1%} / {p['kept']:.0%}" for p in of["promises"].values()
            )
            shares = (
                f"{of['in series']:.0%}",
                f"{of['accuracy']:.1%}",
                f"{of['nll']:.3f}",
                f"{of['ece']:.1%}",
            )
            rows.append((name, way, *shares, f"{of['none']:.1%}", *promises))
    answered = (f"{wanted:.0%}: answered / right / kept" for wanted in ACCURACIES)
    return markdown.table((*heads, *answered), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--part", default="test", choices=("val", "test"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--chances", type=float, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    chances = {"twins": CHANCE, "near-duplicates": EVEN}
    if args.chances:
        chances = {f"{chance:g}": chance for chance in args.chances}
    results: dict[str, Any] = {"draws": args.draws, "part": args.part, "commit": commit(), "sets": {}}
    for name in args.sets:
        results["sets"][name] = measured(*SETS[name], args.draws, args.root, args.part, chances)
        print(show({"sets": {name: results["sets"][name]}}), flush=True)
        if args.out:  # after each, since all of them take long
            write_text(args.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
