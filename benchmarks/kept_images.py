"""What it costs that some photographs stand for all when `conjugate` chooses how far to trust them.

    python -m benchmarks.kept_images ROOT

Every training image of each benchmark under ROOT is in the sums; κ, T and the rest are chosen by all of them,
or by as many as a column says. The figures are of the validation images, on `lite`.
"""

import sys
from pathlib import Path

import torch

from pbprompt import markdown
from pbprompt.evidence import evidence
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.metrics.evaluation import summary
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.load import load_backbone

BENCHMARKS = ("caltech101", "oxford_pets", "flowers102", "grocery", "pacs")
KEPT = (sys.maxsize, 1024, 512, 256)


def encoded(features: Features) -> Encoded:
    return Encoded(features.global_, features.patches)


def main(root: Path) -> None:
    bank = FeatureCache(load_backbone("lite"))
    kind = find_method("conjugate")
    rows = []
    for name in BENCHMARKS:
        dataset = open_dataset(name, root)
        train, val = (bank.encode(dataset.root, items) for items in (dataset.train, dataset.val))
        cells = [name, f"{len(train):,}", f"{len(dataset.classes)}"]
        for kept in KEPT:
            evidence.KEPT = kept
            method = build_method(kind, make_config(kind), bank.backbone, seed=1)
            method.prepare(dataset.classes, dataset.template)
            method.begin(encoded(train), train.labels)
            said = predictive(method)(encoded(val)).probabilities
            logs = said.clamp_min(torch.finfo(torch.float32).tiny).log().numpy()
            found = summary(logs, val.labels.numpy())
            cells.append(f"{found['accuracy']:.1%} / {found['nll']:.3f} / {found['ece']:.1%}")
        rows.append(cells)
    shown = ["all" if kept == sys.maxsize else f"{kept:,}" for kept in KEPT]
    print(markdown.table(["benchmark", "images", "classes", *shown], rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
