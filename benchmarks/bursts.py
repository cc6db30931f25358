"""Bursts of photographs: four crops of each, every other one mirrored, each a little brighter or darker.

    python -m benchmarks.bursts DATA FOLDER

writes features of `lite` of a few photographs of each class of OxfordPets and Flowers102, from their training
images, for `benchmarks/series.py`.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image, ImageEnhance, ImageOps
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.problems import Labelled, bank
from pbprompt.vision.images.sources import open_dataset

NAMES = ("oxford_pets", "flowers102")
PER_CLASS = 8  # photographs
VIEWS = 4


class Bursts(NamedTuple):
    """Photographs and the burst of each."""

    photographs: Labelled
    series: Int[Tensor, " n"]

    def draw(self, per_class: int, seed: int) -> "Bursts":
        """So many bursts of each class."""
        chance, rows = np.random.default_rng(seed), []
        for label in range(int(self.photographs.labels.max()) + 1):
            own = self.series[self.photographs.labels == label].unique().numpy()
            for one in chance.permutation(own)[:per_class]:
                rows.append((self.series == int(one)).nonzero().squeeze(1))
        chosen = torch.cat(rows)
        images, labels = self.photographs
        return Bursts(Labelled(images[chosen], labels[chosen]), self.series[chosen])


def views(photograph: Image.Image, chance: np.random.Generator) -> list[Image.Image]:
    width, height = photograph.size
    found = []
    for place in range(VIEWS):
        share = chance.uniform(0.8, 0.95)
        across, down = int(width * share), int(height * share)
        left, top = int(chance.integers(0, width - across + 1)), int(chance.integers(0, height - down + 1))
        view = photograph.crop((left, top, left + across, top + down))
        view = ImageOps.mirror(view) if place % 2 else view
        found.append(ImageEnhance.Brightness(view).enhance(chance.uniform(0.8, 1.2)))
    return found


def read(name: str, folder: Path) -> Bursts:
    tensors = load_file(folder / f"bursts-{name}.safetensors")
    return Bursts(Labelled(tensors["images"], tensors["labels"]), tensors["series"])


@torch.inference_mode()
def write(name: str, root: Path, folder: Path) -> None:
    dataset, backbone, chance = open_dataset(name, root), bank().backbone, np.random.default_rng(0)
    images, labels, series = [], [], []
    for label in range(len(dataset.classes)):
        own = [item for item in dataset.train if item.label == label]
        for place in chance.permutation(len(own))[:PER_CLASS].tolist():
            with Image.open(dataset.file(own[place])) as photograph:
                pixels = [backbone.preprocess(one) for one in views(photograph.convert("RGB"), chance)]
            images.append(backbone.image(torch.stack(pixels)).global_.float())
            series += [len(images) - 1] * VIEWS
            labels += [label] * VIEWS
    tensors = {"images": torch.cat(images), "labels": torch.tensor(labels), "series": torch.tensor(series)}
    save_file(tensors, folder / f"bursts-{name}.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for each in NAMES:
        write(each, Path(sys.argv[1]), Path(sys.argv[2]))
