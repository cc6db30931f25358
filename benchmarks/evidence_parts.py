"""Each part of `conjugate` taken away, and each of its constants halved and doubled, on validation images.

    python -m benchmarks.evidence_parts --root DATA --out benchmarks/results/evidence-parts.json
    python -m benchmarks.evidence_parts --features CLIP --out benchmarks/results/evidence-parts-clip.json

Narrow classes as the benchmarks have them and broad ones (`benchmarks/problems.py`), two draws each:
accuracy, NLL and ECE of the known classes; then all names together after 16 shots of half of the classes, how
many of the other half's images their names are given, how well these are told as none of the known, and what
a foreign name takes. No test image is read. The table is printed for `docs/readings-conjugate.md`; the file
keeps every figure with the commit. The last column is accuracy on PACS's drawings after 16 photos per class.

With CLIP's features (`benchmarks/on_clip.py`) the same on their validation images, which are drawn from and
judge: 1, 2 and 4 photographs per class, and all names together after 4 of half of the classes. `--rows`: some
rows alone, by their titles.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks import on_clip
from benchmarks.problems import DOMAINS, NARROW, Labelled, Problem, answers, figures, fitted, problem, split
from pbprompt import EvidenceClassifier
from pbprompt.evidence import expert, experts, novelty, posterior, text_map
from pbprompt.evidence import weights as expert_weights
from pbprompt.evidence.experts import gaussian, kernel
from pbprompt.files import write_text
from pbprompt.model.metrics.selective import auroc
from pbprompt.research.provenance import commit

SHOTS = (1, 2, 4, 16)
SEEDS = (1, 2)
BROAD = (("caltech101", "20"), ("oxford_pets", "5"), ("flowers102", "10"), ("grocery:photo", "10"))
PROBLEMS = (*((name, "narrow") for name in NARROW), *BROAD)
FOREIGN = ("red panda", "stapler", "volcano", "submarine")


class Change(NamedTuple):
    """Values of modules, or settings, that make a row of the table."""

    values: tuple[tuple[ModuleType | type, str, Any], ...] = ()
    settings: dict[str, str] = {}  # noqa: RUF012  (never written to)


def without_expert(place: int) -> Change:
    """Its scores count for nothing."""
    plain = expert_weights.fit_weights

    def fit(scores: torch.Tensor, *rest: Any) -> expert_weights.Weights:
        if len(scores) < 4:  # of names alone, or of new names
            return plain(scores, *rest)
        silent = scores.clone()
        silent[place] = 0
        weights = plain(silent, *rest)
        log, root = weights.log.clone(), weights.root.clone()
        log[place], root[place] = -60.0, 0.0
        return expert_weights.Weights(log, root)

    return Change(((expert_weights, "fit_weights", fit),))


def not_mixed(self: posterior.Posterior, logits: torch.Tensor, *rest: Any) -> torch.Tensor:
    return logits


def best_alone(self: expert_weights.Weights, samples: int) -> torch.Tensor:
    return self.best.unsqueeze(0)


PARTS: dict[str, Change] = {
    "all parts": Change(),
    "without Gaussians": without_expert(0),
    "without kernel regression": without_expert(1),
    "without the nearest photograph": without_expert(2),
    "without names beside": without_expert(3),
    "names not in the Gaussians' prior": Change(((gaussian, "GAMMA", 0.0),)),
    "names where their texts lie": Change(((text_map, "WORTH", 1e12),)),
    "the data's sentence alone": Change(settings={"prior": "sentence"}),
    "general sentences alone": Change(settings={"prior": "ensemble"}),
    "no growth of w₁": Change(((expert_weights, "GROWTH", 0.0),)),
    "no uncertainty of w": Change(((expert_weights.Weights, "draws", best_alone),)),
    "nothing left to the names": Change(((posterior.Posterior, "mixed_with_names", not_mixed),)),
    "new names not beside the known ones'": Change(((novelty, "USUAL", (*novelty.USUAL[:3], 1e-9)),)),
    "new names not bounded": Change(((novelty, "BY_ONE", 1.0), (novelty, "BY_TWENTY", 1.0))),
}
CONSTANTS: tuple[tuple[str, ModuleType | type, str], ...] = (
    ("κ", gaussian, "KAPPA"),
    ("γ", gaussian, "GAMMA"),
    ("ν", gaussian, "SHRINKAGE"),
    ("spread of the means", gaussian, "SPREAD"),
    ("h", kernel, "BANDWIDTH"),
    ("λ", kernel, "RIDGE"),
    ("worth of w⁰", expert_weights, "WORTH"),
    ("doubt of w⁰", expert_weights, "DOUBT"),
    ("20 photographs in w⁰", expert_weights, "FEW"),
    ("growth of w₁", expert_weights, "GROWTH"),
    ("photographs' yield to names", expert_weights, "YIELDS"),
    ("folds", expert, "FOLDS"),
    ("worth of plain names", text_map, "WORTH"),
)
USUAL = (("w⁰₁", "gaussians"), ("w⁰₂", "kernel"), ("w⁰₃", "nearest"))
TUPLES: tuple[tuple[str, ModuleType, str, int], ...] = (
    ("usual u", novelty, "USUAL", 0),
    ("usual v", novelty, "USUAL", 1),
    ("usual ψ", novelty, "USUAL", 2),
    ("usual ρ", novelty, "USUAL", 3),
    ("start of leaving to names", novelty, "GATE", 0),
)


def rows() -> Iterator[tuple[str, Change]]:
    yield from PARTS.items()
    for title, module, name in CONSTANTS:
        for word, factor in (("halved", 0.5), ("doubled", 2.0)):
            value = getattr(module, name)
            yield f"{title} {word}", Change(((module, name, type(value)(factor * value)),))
    for title, name in USUAL:
        for word, factor in (("halved", 0.5), ("doubled", 2.0)):
            kind = experts.EXPERTS[name]
            other = {**experts.EXPERTS, name: kind._replace(usual=factor * kind.usual)}
            yield f"{title} {word}", Change(((posterior, "EXPERTS", other),))
    for title, module, name, place in TUPLES:
        for word, factor in (("halved", 0.5), ("doubled", 2.0)):
            values = list(getattr(module, name))
            values[place] *= factor
            yield f"{title} {word}", Change(((module, name, tuple(values)),))


@contextmanager
def changed(change: Change) -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in change.values:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def half(given: Problem, photographs: Labelled) -> tuple[Problem, Labelled]:
    """The first half of the classes."""
    known = (len(given.classes) + 1) // 2
    few = Labelled(*(part[photographs.labels < known] for part in photographs))
    return given._replace(classes=given.classes[:known]), few


def new_names(given: Problem, photographs: Labelled, settings: dict[str, str]) -> dict[str, float]:
    """After fitting half of the classes: the others by name, and as none of these."""
    base, few = half(given, photographs)
    method = fitted(base.classes, base.template, few, **settings)
    is_new = given.held_out.labels >= len(base.classes)
    method.prepare(given.classes, given.template)
    said = answers(method, given.held_out).argmax(1) == given.held_out.labels
    familiar = method.fitted.familiarity(given.held_out.encoded)
    assert familiar is not None
    return {
        "joint": 100 * float(said.double().mean()),
        "recalled": 100 * float(said[is_new].double().mean()),
        "none of these": 100 * auroc(-familiar.numpy(), is_new.numpy()),
    }


def taken(given: Problem, photographs: Labelled, settings: dict[str, str]) -> float:
    """The largest share of images, in %, that one foreign name takes."""
    method = fitted(given.classes, given.template, photographs, **settings)
    shares = []
    for name in FOREIGN:
        method.prepare((*given.classes, name), given.template)
        shares.append(
            float((answers(method, given.held_out).argmax(1) == len(given.classes)).double().mean())
        )
    return 100 * max(shares)


def other_domains(root: Path, seed: int, settings: dict[str, str]) -> float:
    """Accuracy on the drawings of PACS after 16 photos per class, in %."""
    photos = problem("pacs:photo", "narrow", root, "val")
    method = fitted(photos.classes, photos.template, photos.draw(16, seed), **settings)
    right = []
    for domain in DOMAINS[1:]:
        there = split(f"pacs:{domain}", root, "val")
        right.append(float((answers(method, there).argmax(1) == there.labels).double().mean()))
    return 100 * fmean(right)


def averaged(values: list[Any]) -> Any:
    """Over the draws."""
    return (
        [fmean(column) for column in zip(*values, strict=True)]
        if isinstance(values[0], list)
        else fmean(values)
    )


def on_clips(features: Path) -> dict[str, Any]:
    """Every figure of a row on CLIP's features, averaged over the draws."""
    found = {}
    for source in on_clip.sources(features):
        if source.texts is None or "views" in source.title:
            continue
        given = source._replace(held_out=None)  # the others of the validation split judge
        each: dict[str, list[Any]] = {}
        for seed in SEEDS:
            for shots in on_clip.FEW:
                rows = given.drawn(shots, seed)
                (images, labels), judging = given.judging(rows)
                model = EvidenceClassifier(given.texts, on_clip.SCALE).fit(
                    *(part[rows] for part in given.train)
                )
                said = torch.from_numpy(model.predict_proba(images[judging]))
                each.setdefault(str(shots), []).append(figures(said, torch.from_numpy(labels[judging])))
            joint, recalled, *_ = on_clip.half_by_name(given, max(on_clip.FEW), seed)
            each.setdefault("joint", []).append(joint)
            each.setdefault("recalled", []).append(recalled)
        found[f"{source.title} clip"] = {key: averaged(values) for key, values in each.items()}
    return found


def measured(change: Change, root: Path) -> dict[str, Any]:
    """Every figure of a row, averaged over the draws."""
    found: dict[str, Any] = {"domains": fmean(other_domains(root, seed, change.settings) for seed in SEEDS)}
    for name, kind in PROBLEMS:
        each: dict[str, list[Any]] = {}
        for seed in SEEDS:
            given = problem(name, kind, root, "val", seed)
            for shots in SHOTS:
                photographs = given.draw(shots, seed)
                method = fitted(given.classes, given.template, photographs, **change.settings)
                said = answers(method, given.held_out)
                each.setdefault(str(shots), []).append(figures(said, given.held_out.labels))
            each.setdefault("taken", []).append(taken(given, given.draw(16, seed), change.settings))
            if kind == "narrow":
                for key, value in new_names(given, given.draw(16, seed), change.settings).items():
                    each.setdefault(key, []).append(value)
        found[f"{name} {kind}"] = {key: averaged(values) for key, values in each.items()}
    return found


def row(asked: tuple[str, Path | None, Path | None]) -> tuple[str, dict[str, Any]]:
    """One row, in a process of its own."""
    title, root, features = asked
    torch.set_num_threads(1)
    change = dict(rows())[title]
    with changed(change):
        return title, (measured(change, root) if root else {}) | (on_clips(features) if features else {})


def cells(found: dict[str, Any]) -> dict[str, str]:
    """Means over the narrow problems, over the broad ones and over CLIP's sets, by the column."""
    groups = {
        "narrow": [values for name, values in found.items() if name.endswith("narrow")],
        "broad": [values for name, values in found.items() if name.split()[-1].isdigit()],
        "CLIP": [values for name, values in found.items() if name.endswith("clip")],
    }
    shown = {}
    for title, group in groups.items():
        for shots in (str(n) for n in SHOTS if group and str(n) in group[0]):
            acc, nll, ece = (fmean(column) for column in zip(*(one[shots] for one in group), strict=True))
            shown[f"{title} {shots}"] = f"{acc:.1f} / {nll:.3f} / {ece:.1f}"
    for title, group in groups.items():
        for key in ("joint", "recalled", "none of these"):
            if group and key in group[0]:
                head = f"{title}, {key}" if title == "CLIP" else key
                shown[head] = f"{fmean(one[key] for one in group):.1f}"
    if groups["narrow"]:
        shown["taken"] = f"{fmean(one['taken'] for one in (*groups['narrow'], *groups['broad'])):.1f}"
        shown["other domains"] = f"{found['domains']:.1f}"
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", default=list(dict(rows())))
    parser.add_argument("--jobs", type=int, default=1, help="rows that are measured at a time")
    given = parser.parse_args()
    at = commit()  # of the code that runs, whatever is checked out later
    found: dict[str, dict[str, Any]] = {}
    with Pool(given.jobs) as pool:
        asked = [(title, given.root, given.features) for title in given.rows]
        for title, figures_ in pool.imap(row, asked):
            shown = cells(figures_)
            if not found:
                print("| | " + " | ".join(shown) + " |\n|" + "---|" * (len(shown) + 1))
            found[title] = figures_
            print(f"| {title} | " + " | ".join(shown.values()) + " |", flush=True)
            backbones = [name for name, at_ in (("lite", given.root), ("CLIP", given.features)) if at_]
            record = {"commit": at, "backbone": backbones, "seeds": SEEDS, "shots": SHOTS, "rows": found}
            write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
