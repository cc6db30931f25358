"""What comparing patches adds to `conjugate`, on validation images: with `--set patches=true` and without.

    python -m benchmarks.patches --root DATA --out benchmarks/results/patches.json [--backbone lite]

Five datasets with their own classes, and four of them merged at random into ten broad ones whose names say
nothing; two draws (and merges) with `lite`, one with `lite-vit`: accuracy in %, NLL and ECE in % without and
with patches, processor seconds of one fit from features, milliseconds of one image's answer from its
features, and bytes of the model. `tower_ms` is an image's time in the tower of the same run: an answer from
pixels takes so many times as long with patches as each line ends with, and the last of a set's figures are.
No test image is read. Prints the table of `docs/readings-conjugate.md`; figures of another backbone stay in
the file.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from safetensors.torch import save

from benchmarks.problems import figures
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.files import write_text
from pbprompt.learners.method import build_method
from pbprompt.model.predictor import predictive
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

SETS = ("pacs:photo", "oxford_pets", "flowers102", "grocery:photo", "caltech101")
BROAD = SETS[1:]  # merged into so many classes
BROAD_CLASSES = 10
SHOTS, MOST = (1, 4, 16), 900  # validation images of a set
TIMES = 20


def drawn(labels: list[int], shots: int, seed: int) -> list[int]:
    """Rows of so many photographs per class; of fewer, the first of those of more."""
    chance, given, rows = torch.Generator().manual_seed(seed), torch.tensor(labels), list[int]()
    for label in range(max(labels) + 1):
        own = (given == label).nonzero().squeeze(1)
        rows += own[torch.randperm(len(own), generator=chance)[:shots]].tolist()
    return rows


def merged(classes: Sequence[str], seed: int) -> tuple[list[str], list[int]]:
    """The names of broad classes, and to which of them each class belongs."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) % BROAD_CLASSES
    return [f"group {each + 1}" for each in range(BROAD_CLASSES)], place.tolist()


def seconds(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        before = time.process_time()
        call()
        taken.append(time.process_time() - before)
    return median(taken)


@torch.no_grad()
def measured(
    bank: FeatureCache, words: tuple[Any, str], few: Features, held: Features, on: bool
) -> list[float]:
    method = build_method(Conjugate, ConjugateConfig(patches=on), bank.backbone, seed=0)
    method.prepare(*words)

    def fit() -> None:
        method.begin(few.images, few.labels)

    taken = seconds(fit, 1)
    predictor, one = predictive(method), held.subset(slice(1)).images
    said = predictor(held.images).probabilities.double()
    answer = seconds(lambda: predictor(one), TIMES)
    return [*figures(said, held.labels), taken, 1000 * answer, len(save(method.state_dict()))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", action="append", help="[lite with two draws, lite-vit with one]")
    given, at = parser.parse_args(), commit()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for backbone in given.backbone or ["lite", "lite-vit"]:
        bank = FeatureCache(load_backbone(backbone))
        pixels = torch.rand(1, 3, *bank.backbone.preprocess.shape)
        with torch.inference_mode():
            tower = 1000 * seconds(partial(bank.backbone.image, pixels), TIMES)
        own = found[backbone] = {"commit": at, "tower_ms": tower}
        print(f"\n| {backbone} | " + " | ".join(map(str, SHOTS)) + " |\n|" + "---|" * (len(SHOTS) + 1))
        for kind, names in (("", SETS), (f", {BROAD_CLASSES} broad", BROAD)):
            gains: dict[int, list[tuple[float, float]]] = {shots: [] for shots in SHOTS}
            for name in names:
                dataset, shown = open_dataset(name, given.root), []
                order = torch.randperm(len(dataset.val), generator=torch.Generator().manual_seed(0))
                held = bank.encode(dataset.root, [dataset.val[row] for row in order[:MOST].tolist()])
                for shots in SHOTS:
                    pairs = []
                    for seed in (1, 2) if backbone == "lite" else (1,):
                        classes, place = list(dataset.classes), list(range(len(dataset.classes)))
                        if kind:
                            classes, place = merged(classes, seed)
                        rows = drawn([place[item.label] for item in dataset.train], shots, seed)
                        few = bank.encode(dataset.root, [dataset.train[row] for row in rows])
                        some, judging = (
                            replace(each, labels=torch.tensor(place)[each.labels]) for each in (few, held)
                        )
                        words = classes, dataset.template
                        pairs.append([measured(bank, words, some, judging, on) for on in (False, True)])
                    without, with_them = (
                        [fmean(each) for each in zip(*side, strict=True)] for side in zip(*pairs, strict=True)
                    )
                    slower = (tower + with_them[4]) / (tower + without[4])
                    own.setdefault(name + kind, {})[str(shots)] = [without, [*with_them, slower]]
                    gains[shots].append((with_them[0] - without[0], with_them[1] - without[1]))
                    before, after = (
                        f"{one[0]:.1f} / {one[1]:.3f} / {one[2]:.1f}" for one in (without, with_them)
                    )
                    shown.append(f"{before} → {after}")
                print(f"| {name}{kind} | " + " | ".join(shown) + f" | {slower:.2f}×", flush=True)
            means = (tuple(fmean(one) for one in zip(*each, strict=True)) for each in gains.values())
            shown = [f"{more:+.1f} / {nll:+.3f}" for more, nll in means]
            print(f"| mean{kind} | " + " | ".join(shown) + " |", flush=True)
        write_text(given.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
