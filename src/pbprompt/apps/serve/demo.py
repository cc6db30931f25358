"""The images of `serve --demo`: drawings of the sample that a model of its classes may be taught."""

import random
import shutil
from pathlib import Path

from pbprompt.errors import InputError
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.sources import open_dataset

EACH = 3  # of a class


def write_drawings(model: TunedModel, folder: Path) -> None:
    """Copies of test images of the model's classes, in an order and by names that say no class."""
    sample = open_dataset("sample")
    known = [sample.classes.index(name) for name in model.classes if name in sample.classes]
    if len(known) < 2:
        raise InputError(
            "--demo shows drawings of the sample, whose classes this model does not know: "
            "pbprompt fit sample --shots 1 --out sample-model/"
        )
    chosen = [item for label in known for item in [i for i in sample.test if i.label == label][:EACH]]
    random.Random(0).shuffle(chosen)
    for number, item in enumerate(chosen):
        shutil.copy(sample.root / item.path, folder / f"{number:03}.webp")
