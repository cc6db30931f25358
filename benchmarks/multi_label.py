"""How well does a model of several labels an image do? Collages of photographs, whose labels are known.

    python -m benchmarks.multi_label run --root DATA --results benchmarks/results/multi-label.json
    python -m benchmarks.multi_label report benchmarks/results/multi-label.json \\
        --write benchmarks/results/multi-label.md

A collage has one, two or four photographs of one split and is labelled with all their classes; every fifth
class is a distractor that has no label, so that some collages have none. `conjugate`'s one-vs-rest is set
beside the names alone (cosine similarity: a ranking, which has no threshold) and a one-vs-rest logistic
regression on the same features, whose C is the best of four by five folds of its training collages, and whose
thresholds are chosen from the answers on these folds by the same rule. Training collages are of training
photographs. Settings were chosen by collages of validation photographs (`run --split val`): the ridge of the
covariance by OxfordPets', the 32 images of the thresholds by Caltech101's too. The report is of test ones.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from torch import Tensor

from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.label_head import choose_thresholds
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.markdown import table
from pbprompt.model.metrics.evaluation import MultiLabelEvaluation, mean_average_precision
from pbprompt.model.predictor import zero_shot
from pbprompt.research.provenance import commit
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.loading.load import load_backbone

DATASETS = ("caltech101", "oxford_pets", "flowers102")
SIZES = (50, 100, 200, 400, 800)  # training collages
SEED = 1  # of the collages
DRAWS = (1, 2, 3)
JUDGED = 800  # collages that figures are of
SIDE = 224  # pixels of a collage
PHOTOGRAPHS = (1, 2, 4)
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)
BATCH = 64
METHODS = {"names": "names alone", "logistic": "logistic regression", "conjugate": "`conjugate`, one-vs-rest"}
FIGURES = {"map": "mAP", "micro_f1": "micro F1", "macro_f1": "macro F1"}
START, END = "<!-- made by python -m benchmarks.multi_label -->\n", "<!-- end -->\n"


# What a collage is


class Collage(NamedTuple):
    """Photographs of a collage, and its labels."""

    items: tuple[Item, ...]
    labels: tuple[str, ...]


def named(dataset: Dataset) -> list[str]:
    """The classes that are labelled: all but every fifth."""
    return [name for place, name in enumerate(dataset.classes) if place % 5 < 4]


def collages(dataset: Dataset, split: str, count: int, seed: int) -> list[Collage]:
    """Which photographs stand together; a function of the seed."""
    source, items, labelled = random.Random(f"{seed}\n{split}"), dataset.split(split), set(named(dataset))
    made = []
    for _ in range(count):
        chosen = tuple(source.sample(items, source.choice(PHOTOGRAPHS)))
        names = {dataset.classes[item.label] for item in chosen} & labelled
        made.append(Collage(chosen, tuple(sorted(names))))
    return made


def paste(dataset: Dataset, items: Sequence[Item]) -> Image.Image:
    """One photograph whole, two side by side, or four in two rows, each cut to its middle."""
    canvas, half = Image.new("RGB", (SIDE, SIDE)), SIDE // 2
    size = {1: (SIDE, SIDE), 2: (half, SIDE), 4: (half, half)}[len(items)]
    for place, item in enumerate(items):
        photograph = open_image(dataset.root / item.path)
        scale = max(size[0] / photograph.width, size[1] / photograph.height)
        large = photograph.resize((round(photograph.width * scale), round(photograph.height * scale)))
        left, top = (large.width - size[0]) // 2, (large.height - size[1]) // 2
        tile = large.crop((left, top, left + size[0], top + size[1]))
        canvas.paste(tile, (place % 2 * half, place // 2 * half))
    return canvas


# What is measured


class Task(NamedTuple):
    """Features of length 1 and labels, of training collages and of those that are judged."""

    images: Tensor
    has: Tensor
    judged: Tensor
    judged_has: Tensor


@torch.inference_mode()
def encoded(backbone: Backbone, dataset: Dataset, made: Sequence[Collage]) -> tuple[Tensor, Tensor]:
    """Features and labels of collages, which are made on the fly."""
    parts = []
    for at in range(0, len(made), BATCH):
        pixels = [backbone.preprocess(paste(dataset, one.items)) for one in made[at : at + BATCH]]
        parts.append(backbone.image(torch.stack(pixels)).global_)
    labels = named(dataset)
    return unit(torch.cat(parts)), torch.tensor([[name in one.labels for name in labels] for one in made])


def figures(said: Tensor, has: Tensor, thresholds: Tensor) -> dict[str, float]:
    """Probabilities of judged collages, by thresholds."""
    nameless = ("",) * has.shape[1], ("",) * len(has)
    whole = MultiLabelEvaluation(*nameless, has, said, tuple(thresholds.tolist())).figures
    loss = F.binary_cross_entropy(said.double().clamp(1e-7, 1 - 1e-7), has.double(), reduction="sum")
    return {
        "map": whole["map"],
        "micro_f1": whole["micro"]["f1"] or 0.0,
        "macro_f1": whole["macro"]["f1"],
        "nll": float(loss) / len(has),
    }


def logistic(task: Task) -> dict[str, float]:
    """One logistic regression a label; of a label without a collage, the lowest probability there is."""
    x, has = task.images.numpy(), task.has.numpy()

    def fitted(rows: Any, strength: float, asked: Any) -> Tensor:
        columns = torch.full((len(asked), has.shape[1]), 1e-7, dtype=torch.float64)
        for label in range(has.shape[1]):
            own = has[rows, label]
            if own.any() and not own.all():
                model = LogisticRegression(C=strength, max_iter=500).fit(x[rows], own)
                columns[:, label] = torch.from_numpy(model.predict_proba(asked)[:, 1])
        return columns

    best: tuple[float, float, Tensor] | None = None
    for strength in STRENGTHS:
        said = torch.zeros(has.shape, dtype=torch.float64)
        for rows, others in KFold(5, shuffle=True, random_state=0).split(x):
            said[others] = fitted(rows, strength, x[others])
        loss = float(F.binary_cross_entropy(said.clamp(1e-7, 1 - 1e-7), task.has.double()))
        if best is None or loss < best[0]:
            best = loss, strength, said
    assert best is not None
    thresholds = choose_thresholds(best[2], task.has.double())
    said = fitted(slice(None), best[1], task.judged.numpy())
    return figures(said, task.judged_has, thresholds)


def measure(
    name: str, root: str | None, split: str, sizes: Sequence[int], judged: int
) -> list[dict[str, Any]]:
    """The figures of every method, number of training collages and draw on one dataset."""
    backbone, dataset = load_backbone("lite"), open_dataset(name, root)
    labels = named(dataset)
    x, has = encoded(backbone, dataset, collages(dataset, "train", max(sizes), SEED))
    asked, wanted = encoded(backbone, dataset, collages(dataset, split, judged, SEED))
    words = unit(zero_shot(backbone, labels, dataset.template).bank[0])
    rows = [{"method": "names", "map": mean_average_precision(asked @ words.T, wanted)}]
    method = build_method(Conjugate, Conjugate.Config(), backbone, seed=0)
    method.prepare(labels, dataset.template)
    for size in sizes:
        for draw in DRAWS if size < max(sizes) else DRAWS[:1]:
            order = random.Random(draw).sample(range(len(x)), size)
            task = Task(x[order], has[order], asked, wanted)
            with torch.no_grad():
                head = method.label_head(Encoded(task.images, task.images[:, None]), task.has.float())
            own = figures(head.probabilities(asked), wanted, head.threshold)
            rows += [
                {"method": way, "size": size, "draw": draw, **found}
                for way, found in (("conjugate", own), ("logistic", logistic(task)))
            ]
            print(name, rows[-2], rows[-1], file=sys.stderr, flush=True)
    return [{"dataset": name, "split": split} | rounded(row) for row in rows]


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}


def report(kept: dict[str, Any]) -> str:
    """A table per dataset: mean over draws, in %."""
    found, parts = kept["rows"], []
    for name in dict.fromkeys(row["dataset"] for row in found):
        own = [row for row in found if row["dataset"] == name]
        sizes = sorted({row["size"] for row in own if "size" in row})
        lines = []
        for method, title in METHODS.items():
            cells = []
            for size in sizes:
                some = [row for row in own if row["method"] == method and row.get("size", size) == size]
                shown = [f"{100 * fmean(row[key] for row in some):.1f}" for key in FIGURES if key in some[0]]
                cells.append(" / ".join(shown))
            lines.append((title, *cells))
        head = (name, *(f"{size} images" for size in sizes))
        parts.append(table(head, lines, figures=True))
    how = f"{JUDGED} collages of {found[0]['split']} photographs, mean over draws {DRAWS[0]} to {DRAWS[-1]}"
    command = "python -m benchmarks.multi_label run --root DATA --results benchmarks/results/multi-label.json"
    made = f"Made by `{command}`, `lite`, seed {SEED}, {how}, commit {kept['commit'] or 'unknown'}."
    return "\n\n".join([f"{made} In %: {' / '.join(FIGURES.values())}.", *parts])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, dest="verb")
    run = verbs.add_parser("run")
    run.add_argument("--root", help="where the benchmarks are")
    run.add_argument("--data", nargs="+", default=list(DATASETS))
    run.add_argument("--split", default="test", choices=("val", "test"))
    run.add_argument("--results", type=Path, required=True)
    shown = verbs.add_parser("report")
    shown.add_argument("results", type=Path)
    shown.add_argument("--write", type=Path, help="a page whose marked part the tables replace")
    given = parser.parse_args()
    if given.verb == "run":
        kept: dict[str, Any] = {"commit": commit(), "rows": []}  # as it is now, not when the run ends
        for name in given.data:
            kept["rows"] += measure(name, given.root, given.split, SIZES, JUDGED)
            write_text(given.results, json.dumps(kept, indent=0) + "\n")
        return
    text = report(json.loads(given.results.read_text(encoding="utf-8")))
    if given.write is None:
        print(text)
        return
    page = given.write.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    write_text(given.write, f"{before}{START}\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
