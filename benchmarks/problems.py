"""Problems to measure the default model on: classes of benchmarks as they are, and merged into broad ones.

A problem is a dataset and a kind: `narrow` (its own classes), a number (its classes merged at random into so
many groups, whose names say nothing), or `cats-dogs` (OxfordPets by species). Draws are seeded. Features of
`lite` come from images under a root, or from files that were written before, for a machine without them:

    python -m benchmarks.problems DATA FOLDER
"""

import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.learners.method import build_method
from pbprompt.model.metrics.evaluation import summary
from pbprompt.model.predictor import predictive
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.load import load_backbone

NARROW = ("caltech101", "oxford_pets", "flowers102", "grocery:photo", "sample")
BROAD = tuple(
    (name, groups)
    for name in ("caltech101", "oxford_pets", "flowers102", "grocery:photo")
    for groups in (5, 10, 20)
)
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")  # of PACS
BREEDS = """\
abyssinian, bengal, birman, bombay, british shorthair, egyptian mau, maine coon, persian, ragdoll,
russian blue, siamese, sphynx"""
CATS = frozenset(BREEDS.replace("\n", " ").split(", "))


class Labelled(NamedTuple):
    """Image features and their labels."""

    images: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]

    @property
    def encoded(self) -> Encoded:
        return Encoded(self.images, self.images.new_zeros(len(self.images), 0, self.images.shape[1]))


class Problem(NamedTuple):
    """Classes with a sentence around their names, photographs to draw from, and others to be judged by."""

    classes: tuple[str, ...]
    template: str
    train: Labelled
    held_out: Labelled

    def draw(self, shots: int | None, seed: int) -> Labelled:
        """So many photographs per class, or all."""
        if shots is None:
            return self.train
        chance = torch.Generator().manual_seed(seed)
        rows = []
        for label in range(len(self.classes)):
            own = (self.train.labels == label).nonzero().squeeze(1)
            rows.append(own[torch.randperm(len(own), generator=chance)[:shots]])
        chosen = torch.cat(rows)
        return Labelled(self.train.images[chosen], self.train.labels[chosen])


@cache
def bank() -> FeatureCache:
    return FeatureCache(load_backbone("lite"))


@cache
def words(name: str, root: Path) -> tuple[tuple[str, ...], str]:
    """A dataset's classes, and the sentence around them."""
    if (file := written(name, root)).is_file():
        with safe_open(file, "pt") as tensors:
            classes, template = json.loads(tensors.metadata()["words"])
        return tuple(classes), template
    dataset = open_dataset(name, root)
    return dataset.classes, dataset.template


@cache
def split(name: str, root: Path, part: str) -> Labelled:
    if (file := written(name, root)).is_file():
        tensors = load_file(file)
        return Labelled(tensors[part], tensors[f"{part} labels"])
    dataset = open_dataset(name, root)
    found = bank().encode(dataset.root, dataset.split(part))
    return Labelled(found.global_.clone(), found.labels)


def written(name: str, folder: Path) -> Path:
    """Where a dataset's features are, if they were written."""
    return folder / f"{name.replace(':', '-')}.safetensors"


def write(name: str, root: Path, folder: Path) -> None:
    """Features, labels and names of a dataset's splits."""
    tensors: dict[str, Tensor] = {}
    for part in ("train", "val", "test"):
        found = split(name, root, part)
        tensors |= {part: found.images, f"{part} labels": found.labels}
    save_file(tensors, written(name, folder), {"words": json.dumps(words(name, root))})


def problem(name: str, kind: str, root: Path, part: str, seed: int = 1) -> Problem:
    """`part`: val or test, to be judged by; `seed`: of a random merge."""
    own, template = words(name, root)
    train, held_out = split(name, root, "train"), split(name, root, part)
    if kind == "narrow":
        return Problem(own, template, train, held_out)
    if kind == "cats-dogs":
        place = torch.tensor([int(each.lower() not in CATS) for each in own])
        classes: tuple[str, ...] = ("cat", "dog")
    else:
        order = list(range(len(own)))
        random.Random(seed).shuffle(order)
        place = torch.empty(len(order), dtype=torch.long)
        place[order] = torch.arange(len(order)) % int(kind)
        classes = tuple(f"group {each + 1}" for each in range(int(kind)))
    merged = (Labelled(each.images, place[each.labels]) for each in (train, held_out))
    return Problem(classes, "a photo of a {}.", *merged)


def fitted(
    classes: tuple[str, ...], template: str, photographs: Labelled, prior: str = "sentences"
) -> Conjugate:
    """The default model of these photographs."""
    method = build_method(Conjugate, ConjugateConfig(prior=prior), bank().backbone, seed=0)
    method.prepare(classes, template)
    method.begin(photographs.encoded, photographs.labels)
    return method


def answers(method: Conjugate, images: Labelled) -> Float[Tensor, "n c"]:
    """Probabilities of the classes that the method is prepared for."""
    return predictive(method)(images.encoded).probabilities.double()


def figures(said: Tensor, labels: Tensor) -> list[float]:
    """Accuracy and ECE in %, NLL between them."""
    found = summary(said.clamp_min(1e-38).log(), labels)
    return [100 * found["accuracy"], found["nll"], 100 * found["ece"]]


def main(root: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*NARROW, "pacs", *(f"pacs:{domain}" for domain in DOMAINS)):
        write(name, root, folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
