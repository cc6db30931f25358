"""Promises where a folder is not like the training images: other class frequencies, and groups of classes.

    python -m benchmarks.promises --root DATA --out benchmarks/results/promises.json
    python -m benchmarks.promises --show benchmarks/results/promises.json

DATA is a folder of images, or of features (`benchmarks/problems.py`). Of each draw the default model is
fitted to features of `lite` and judged by the test images; a promise is kept in a draw where so many of the
answers are right.

`mix`: 6 to 70 photographs of a breed, or 6 to 200 of what cartoons of PACS show, evenly in logarithms and by
chance of which class, each left out in turn; judged as if each class had as many images, by weight. Macro
recall, recall of the class with 6, and draws that keep `--reject-at`, of the model as trained and under
`--class-mix balanced`; the recalls of linear discriminants (shrunk as Ledoit and Wolf have it) with priors as
trained and flat; then how far the mix of the test images is from
training's, and from what `--class-mix estimate` finds (half the sum of the differences).

`groups`: 16 photographs of each class, and the validation images (the same in all draws) to calibrate by,
less those of a series with them, as `fit --group near-duplicates` does. Breeds in cats and dogs; Grocery's
classes in its coarse ones alone, and these in fruit, packages and vegetables besides; PACS's cartoons in
animals and things, and people. Draws that keep `--reject-at` and `--back-off`, and what they answer: by a
class, and by each level of groups.
"""

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from benchmarks.problems import CATS, Labelled, Problem, bank, fitted, problem, split
from pbprompt import markdown
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.series import EVEN, find_series
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.model.calibration import calibrate
from pbprompt.model.evaluate import temperature_of
from pbprompt.model.folder import describe_model
from pbprompt.model.hierarchy import holds, levels
from pbprompt.model.predictor import predict_features
from pbprompt.model.tuned import TunedModel
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import Features
from pbprompt.vision.similarity import unit

DRAWS = 20
SHOTS = 16
FEWEST = 6
MOST = {"oxford_pets": 70, "pacs:cartoon": 200}
ACCURACIES = (0.8, 0.9, 0.95)
COARSE = "grocery:photo, coarse alone"
GROUPED = ("oxford_pets", "grocery:photo", COARSE, "pacs:cartoon")
ANIMALS, THINGS = ("dog", "elephant", "giraffe", "horse"), ("guitar", "house")


def skewed(whole: Problem, seed: int, most: int) -> Labelled:
    chance, rows = np.random.default_rng(seed), []
    classes = chance.permutation(len(whole.classes))
    for rank, label in enumerate(classes.tolist()):
        own = chance.permutation(np.flatnonzero(whole.train.labels.numpy() == label))
        rows.append(own[: round(FEWEST * (most / FEWEST) ** (rank / (len(classes) - 1)))])
    chosen = torch.from_numpy(np.concatenate(rows))
    return Labelled(whole.train.images[chosen], whole.train.labels[chosen])


def by_validation(whole: Problem, few: Labelled, val: Labelled, hierarchy: dict[str, str]) -> TunedModel:
    """Calibrated by validation images that are of no training image's series."""
    images, labels = torch.cat([few.images, val.images]), torch.cat([few.labels, val.labels])
    groups, n = find_series(unit(images.float()), labels, EVEN).of, len(few.labels)
    free = ~torch.isin(groups[n:], groups[:n])
    method = build_method(Conjugate, ConjugateConfig(), bank().backbone, seed=0)
    method.prepare(whole.classes, whole.template)
    series = find_series(unit(few.images.float()), few.labels, EVEN).of
    method.begin(few.encoded, few.labels, groups=series)
    info, patches = replace(describe_model(method), hierarchy=hierarchy), val.encoded.patches
    kept = Features(val.images[free], patches[free], val.labels[free])
    said = predict_features(TunedModel(method, info).predictor, kept)
    model = TunedModel(method, replace(info, temperature=temperature_of(said, kept)))
    said = predict_features(model.predictor, kept)
    given = said.probabilities, kept.labels, groups[n:][free], said.familiarity
    return replace(model, calibration=calibrate(model.predictor, *given))


def discriminants(few: Labelled, new: Labelled, *, flat: bool) -> NDArray[np.int_]:
    classes = len(few.labels.unique())
    lda = LinearDiscriminantAnalysis(
        "lsqr", shrinkage="auto", priors=[1 / classes] * classes if flat else None
    )
    lda.fit(unit(few.images.float()).numpy(), few.labels.numpy())
    return lda.predict(unit(new.images.float()).numpy())


def recalls(answer: NDArray[np.int_], labels: NDArray[np.int_], rare: int) -> dict[str, float]:
    right = answer == labels
    weights = (1 / np.bincount(labels))[labels]
    return {
        "macro recall": float(np.average(right, weights=weights)),
        "recall of the rarest": float(right[labels == rare].mean()),
    }


def mixed(whole: Problem, seed: int, most: int) -> dict[str, Any]:
    few, new = skewed(whole, seed, most), whole.held_out
    method, rare = fitted(whole.classes, whole.template, few), int(few.labels.bincount().argmin())
    model = TunedModel(method, describe_model(method)).with_left_out()
    labels = new.labels.numpy()
    weights = (1 / np.bincount(labels))[labels]
    found: dict[str, Any] = {}
    for name, one in (("as-trained", model), ("balanced", model.for_class_mix("balanced"))):
        said = one.predict(new.encoded).probabilities.double().numpy()
        top, right = np.round(said.max(1), 6), said.argmax(1) == labels
        found[name] = recalls(said.argmax(1), labels, rare)
        assert one.calibration is not None
        for wanted in ACCURACIES:
            above = weights * (top >= one.calibration.threshold(wanted))
            found[name][f"{wanted}"] = kept(float(above @ right), above.sum(), weights.sum(), wanted)
    for name, flat in (("LDA", False), ("LDA, flat priors", True)):
        found[name] = recalls(discriminants(few, new, flat=flat), labels, rare)
    true, trained = np.bincount(labels) / len(labels), model.class_counts().numpy()
    guess = np.array(list(model.estimated_mix(new.encoded).values()))
    off = (abs(true - each).sum() / 2 for each in (trained / trained.sum(), guess))
    found["distance"] = dict(zip(("training", "estimate"), map(float, off), strict=True))
    return found


def grouped(whole: Problem, val: Labelled, hierarchy: dict[str, str], seed: int) -> dict[str, Any]:
    model, new = by_validation(whole, whole.draw(SHOTS, seed), val, hierarchy), whole.held_out
    labels, found = [whole.classes[label] for label in new.labels.tolist()], {}
    pairs = tuple(hierarchy.items())
    kinds = [whole.classes, *(set(level.names) for level in levels(pairs, whole.classes))]
    for wanted in ACCURACIES:
        said = model.predict(new.encoded, model.rule(wanted, back_off=wanted))
        names = [one.answer[0] if one.answer else "" for one in said]
        right = sum(holds(name, true, pairs) for name, true in zip(names, labels, strict=True) if name)
        wide = [next((at for at in range(len(kinds)) if name in kinds[at]), -1) for name in names]
        shares = {f"by level {at}": wide.count(at) / len(wide) for at in range(len(kinds))}
        assert model.calibration is not None
        sure = np.round(said.probabilities.amax(1).numpy(), 6) >= model.calibration.threshold(wanted)
        hit = said.probabilities.argmax(1).numpy() == new.labels.numpy()
        found[f"{wanted}"] = {
            "reject-at": kept(float((sure & hit).sum()), sure.sum(), len(labels), wanted),
            "back-off": kept(right, sum(map(bool, names)), len(labels), wanted) | shares,
        }
    return found


def kept(right: float, answered: float, images: float, wanted: float) -> dict[str, float]:
    """Of what is answered, so much is right; nothing answered breaks no promise."""
    share = right / answered if answered else 1.0
    return {"answered": float(answered / images), "right": float(share), "kept": float(share >= wanted)}


def hierarchy_of(name: str, classes: tuple[str, ...], root: Path) -> dict[str, str]:
    """Cats and dogs, animals and things, or what Grocery's own table and folders say."""
    if name == "oxford_pets":
        return {each: "cat" if each.lower() in CATS else "dog" for each in classes}
    if name == "pacs:cartoon":
        return dict.fromkeys(ANIMALS, "animal") | dict.fromkeys(THINGS, "thing")
    with next(root.rglob("classes.csv")).open() as file:
        rows = list(csv.DictReader(file))
    kinds = {row["Coarse Class Name (str)"]: row["Iconic Image Path (str)"].split("/")[2] for row in rows}
    coarse = {row["Class Name (str)"].replace("-", " "): row["Coarse Class Name (str)"] for row in rows}
    missing = set(classes) - set(coarse)
    assert not missing, missing
    wide = {} if name == COARSE else {f"{a} (kind)": b for a, b in kinds.items()}
    return {each: f"{coarse[each]} (kind)" for each in classes} | wide


def means(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Of figures of the same names."""
    first = draws[0]
    return {
        name: means([each[name] for each in draws])
        if isinstance(first[name], dict)
        else round(fmean(each[name] for each in draws), 4)
        for name in first
    }


def show(results: dict[str, Any]) -> str:
    heads = ("promised", "answered", "right", "draws that keep it")
    rows, groups = [], []
    for name, of in results["mix"].items():
        for how in (each for each in of if each != "distance"):
            both = [f"{of[how][kind]:.1%}" for kind in ("macro recall", "recall of the rarest")]
            promised = [_row(a, of[how][a]) for a in map(str, ACCURACIES) if a in of[how]]
            rows += [(name, how, *both, *row) for row in promised or [("",) * len(heads)]]
    for name, of in results["groups"].items():
        for a in map(str, ACCURACIES):
            wide = " · ".join(f"{of[a]['back-off'][key]:.1%}" for key in of[a]["back-off"] if "level" in key)
            groups += [
                (name, how, *_row(a, of[a][how]), *([wide] if how == "back-off" else [""]))
                for how in ("reject-at", "back-off")
            ]
    return "\n\n".join(
        (
            markdown.table(("photographs", "class mix", "macro recall", "of the rarest", *heads), rows),
            markdown.table(("photographs", "", *heads, "by classes · groups"), groups),
        )
    )


def _row(wanted: str, of: dict[str, float]) -> tuple[str, ...]:
    return (f"{float(wanted):.0%}", *(f"{of[name]:.1%}" for name in ("answered", "right", "kept")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--images", type=Path, help="where classes.csv of Grocery is, if not below the root")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    seeds = range(1, args.draws + 1)
    results: dict[str, Any] = {"draws": args.draws, "commit": commit(), "groups": {}}
    results["mix"] = {}
    for name, most in MOST.items():
        whole = problem(name, "narrow", args.root, "test")
        results["mix"][name] = means([mixed(whole, seed, most) for seed in seeds])
    for name in GROUPED:
        photographs = name.split(",")[0]
        whole = problem(photographs, "narrow", args.root, "test")
        hierarchy = hierarchy_of(name, whole.classes, args.images or args.root)
        val = split(photographs, args.root, "val")
        results["groups"][name] = means([grouped(whole, val, hierarchy, seed) for seed in seeds])
    if args.out:
        write_text(args.out, json.dumps(results, indent=1) + "\n")
    print(show(results))


if __name__ == "__main__":
    main()
