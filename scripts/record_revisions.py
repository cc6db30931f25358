"""Write tests/conformance/revisions.json: each method's revision, and figures that change with its results.

    python scripts/record_revisions.py

Run it after a method was added, or its `revision` (or the loop's `LOOP_REVISION`) raised because its results
changed. The figures are the losses of three steps from seed 1, then logits and probabilities, on a tiny tower
of random weights.
"""

import json
from pathlib import Path
from typing import Any

import torch

from pbprompt.files import write_text
from pbprompt.learners.fitted import ExpectsNames
from pbprompt.learners.method import Method
from pbprompt.prompts.loop.loop import LOOP_REVISION
from pbprompt.registry import methods
from pbprompt.testing.fits import (
    as_tuned,
    prepared,
    probabilities,
    random_images,
    tiny_vit,
    to_train_on,
    train_recorded,
)
from pbprompt.vision.towers.backbone import Encoded

FILE = Path(__file__).parents[1] / "tests" / "conformance" / "revisions.json"


def own_methods() -> dict[str, type[Method]]:
    """The package's methods, without those of plugins."""
    return {name: kind for name, kind in methods().items() if kind.__module__.startswith("pbprompt.")}


def state(kind: type[Method]) -> dict[str, Any]:
    """A method's revision and its figures, to four significant digits."""
    backbone = tiny_vit()
    images = random_images(backbone)
    method = prepared(kind, {"warmup_epochs": 0}, backbone)  # so that the first steps move
    if isinstance(method, ExpectsNames):
        method.unseen_names = ("moon",)
    figures = train_recorded(method, to_train_on(method, images), 3, steps=3) if kind.trains else []
    seen = as_tuned(method, to_train_on(method, images))
    some = Encoded(seen.global_[:2], seen.patches[:2])
    with torch.no_grad():
        features = method.class_features(2, torch.Generator().manual_seed(5))
        figures += method.sample_logits(some, features).flatten().tolist()
    figures += probabilities(method, images)[:2].flatten().tolist()
    return {"revision": kind.revision, "figures": [float(f"{figure:.4g}") for figure in figures]}


def main() -> None:
    states = {name: state(kind) for name, kind in own_methods().items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in states.items())
    write_text(FILE, f'{{\n  "loop": {LOOP_REVISION},\n{lines}\n}}\n')


if __name__ == "__main__":
    main()
