"""Part `conjugate`: time and memory of `conjugate` as images or classes grow, and of one image more.

A fit here is all that follows the image tower: the names are read (eight sentences each), one pass is made
over synthetic features, and κ, T and the rest are chosen. The features are gone round, so that it is not they
that memory grows with.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.speed.measuring import GIB, apart, memory_now, memory_peak
from benchmarks.speed.rates import seconds_of
from benchmarks.speed.setups import TEMPLATE, Options, make_backbone
from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.evidence import Gathering
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.research.costs import class_names
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

IMAGES, IMAGES_CLASSES = (1_000, 10_000, 100_000, 1_000_000), 100
CLASSES, SHOTS = (10, 100, 1_000, 10_000, 21_000), 16
ASKED = 64  # images of a prediction
POOL = 1 << 15  # synthetic features that are gone round
LINES = {
    "images": {"images, fit": "fit_ms", "images, one more": "learn_ms"},
    "classes": {
        "classes, fit": "fit_ms",
        "classes, one image more": "learn_ms",
        "classes, predict": "predict_ms",
    },
}
LABELS = {
    "images, fit": "images of a fit",
    "images, one more": "one image after N",
    "classes, fit": "classes of a fit",
    "classes, one image more": "one image, C classes",
    "classes, predict": f"{ASKED} predictions, C classes",
}


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row a point: the fit, one image more, and a prediction."""
    quick, device = options.quick, options.device
    name = "tiny" if quick else "lite"
    for images in (64, 128) if quick else IMAGES:
        classes = 4 if quick else IMAGES_CLASSES
        yield {"grows": "images", "value": images, **apart(device, point, name, device, images, classes)}
    for classes in (4, 8) if quick else CLASSES:
        images = SHOTS * classes
        yield {"grows": "classes", "value": classes, **apart(device, point, name, device, images, classes)}


def series(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The points as the plot has them: each time by itself."""
    for row in rows:
        for grows, key in LINES[row["grows"]].items():
            yield {"grows": grows, "value": row["value"], "ms": row[key], "gib": row["gib"]}


def point(name: str, device: str, images: int, classes: int) -> dict[str, Any]:
    """Milliseconds of each step, and the peak of memory over all of them."""
    backbone = make_backbone(name, device)
    method = build_method(Conjugate, make_config(Conjugate), backbone, seed=0)
    names = class_names(backbone.tokenizer, classes)
    generator = torch.Generator().manual_seed(0)
    before = memory_now(device)
    method.prepare(names, TEMPLATE)
    reading, texts = seconds_of(lambda: method.sight.read(names), device)
    texts = texts.cpu()
    pool = synthetic(texts, torch.arange(min(images, POOL)) % classes, generator)
    gathering = Gathering(backbone.embed_dim, device)

    def whole() -> None:
        done = 0
        for features in cycle(pool.split(1024)):
            own = torch.arange(done, min(images, done + len(features))) % classes
            gathering.add(features[: len(own)].to(device), own.to(device))
            done += len(own)
            if done == images:
                return

    passing, _ = seconds_of(whole, device)

    def choose() -> None:
        method.begin_with(gathering.evidence(classes))

    choosing, _ = seconds_of(choose, device)
    new = _encoded(synthetic(texts, torch.arange(ASKED) % classes, generator).to(device))
    predictor = predictive(method)
    predicting, _ = seconds_of(lambda: predictor(new), device)
    one = Encoded(new.global_[:1], new.patches[:1])
    learning, _ = seconds_of(lambda: method.learn(one, torch.zeros(1, dtype=torch.long).to(device)), device)
    return {
        "backbone": name,
        "images": images,
        "classes": classes,
        "names_ms": 1e3 * reading,
        "pass_ms": 1e3 * passing,
        "choice_ms": 1e3 * choosing,
        "predict_ms": 1e3 * predicting,
        "learn_ms": 1e3 * learning,
        "fit_ms": 1e3 * (reading + passing + choosing),
        "gib": (memory_peak(device) - before) / GIB,
    }


def synthetic(
    texts: Float[Tensor, "c d"], labels: Int[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n d"]:
    """A part that all images share, one that their names say, and one of their own."""
    width = texts.shape[1]
    names = unit(texts - texts.mean(0)) if len(texts) > 1 else texts
    own = torch.randn(len(labels), width, generator=generator) / width**0.5
    return unit(0.6 * texts.mean(0) + 0.3 * names[labels] + own)


def _encoded(features: Float[Tensor, "n d"]) -> Encoded:
    return Encoded(features, features.new_zeros(len(features), 0, features.shape[1]))
