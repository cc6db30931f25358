"""Images to try the page on: those that the model was judged by, or drawings; and those of the tour."""

import base64
import contextlib
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pbprompt.apps.audit.audit import look
from pbprompt.apps.audit.page import write_page
from pbprompt.apps.serve.schemas import Samples
from pbprompt.errors import InputError
from pbprompt.files import file_hash
from pbprompt.learners.method import make_config
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.catalog import SAMPLE
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.images import small_jpeg
from pbprompt.vision.images.sources import open_dataset

SIDE = 224  # about what a tower sees
EACH = 3  # of a class, to label in the tour
SHOTS = 4  # of a class, whose parts the tour's images are compared with
DRAWINGS = {
    "cat": "mammal/1f408.webp",
    "guitar": "musical-instrument/1f3b8.webp",
    "apple": "fruit/1f34e.webp",
    "engine": "train/1f682.webp",
    "owl": "bird/1f989.webp",
    "hammer": "tool/1f528.webp",
}


class Tour(NamedTuple):
    """What the tour shows besides labelling."""

    look: str  # the page of `pbprompt look --html`
    comparing: TunedModel  # a second model, since one that compares patches learns no labels


def samples_of(to_try: Sequence[Sequence[str]]) -> Samples:
    """Small copies of the images that a model names: class, file and hash of each."""
    own = dict(_unchanged(to_try))
    drawn = {name: _small(SAMPLE / "images" / "fluent" / file) for name, file in DRAWINGS.items()}
    return Samples(samples=own or drawn, drawn=not own)


def _unchanged(listed: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Whoever made the model may have named any file of this machine: one whose hash it knew is taken."""
    for entry in listed:
        match entry:
            case [name, file, digest]:
                with contextlib.suppress(OSError, InputError):  # no image, or not to be read by us
                    if file_hash(Path(file)) == digest:
                        yield name, _small(Path(file))


def _small(file: Path) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(file, SIDE, quality=80)).decode()


def open_tour(model: TunedModel, folder: Path) -> Tour:
    """Its images to label are copies of the sample's test images, in an order and by names that say no class;
    `look` looks at all test images."""
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
    tower, page, kind = model.backbone.towers[0], folder / "look.html", find_method("conjugate")
    write_page(look(replace(sample, train=(), val=()), backbone=tower), page)
    settings = make_config(kind, overrides=["patches=true"])
    drawn = draw(sample, SHOTS, seed=1).apply(sample)
    return Tour(page.read_text("utf-8"), TunedModel.fit(drawn, FeatureCache(tower), kind, settings))
