"""The paper's table of computation cost on the machine at hand: parameters, and images predicted per second.

A prediction is the image tower and the method's logits; class features are made once, as they are in use.
Decoding is left out, and weights are random: they take no other time. The paper's images per second are from
another machine: only the ratios can be compared.
"""

import time
from random import Random
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from pbprompt.learners.method import build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.research.report.published import published
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.tokenizer import AnyTokenizer
from pbprompt.vision.towers.vit import VitConfig

VIT_B16_TEXT = TextConfig(77, 49408, 512, 8, 12)
VIT_B16 = BackboneConfig("ViT-B/16", 512, VitConfig(224, 16, 768, 12, 12), VIT_B16_TEXT)
CLASSES = 101  # as Food101 has
SAMPLES = 10  # the paper's, in this table
IMAGES = {"cpu": 8, "cuda": 64}  # at once
REPEATS = 3
ROWS = {"CoOp": "coop", "CoCoOp": "cocoop", "PLOT(N=4)": "plot", "PBPrompt": "pbprompt"}
WORDS_TRIED = 4000
NAME_LENGTHS = {1: 35, 2: 35, 3: 15, 4: 9, 5: 4, 6: 1, 8: 1}  # tokens, as ImageNet's thousand names have them


class MethodCost(NamedTuple):
    """A row: ours beside the paper's."""

    method: str
    parameters: int
    published_parameters: int
    images_per_second: float
    published_images_per_second: float


def computation_cost(device: str = "cpu") -> list[MethodCost]:
    """Every row, measured on a ViT-B/16 of random weights."""
    backbone = random_backbone(VIT_B16).to(device)
    pixels = random_images(backbone, IMAGES[backbone.device.type])
    theirs = {(figure.method, figure.metric): figure.value for figure in published("computation_cost")}
    rows = []
    for label, name in ROWS.items():
        kind = find_method(name)
        names = class_names(backbone.tokenizer, CLASSES)
        method = build_method(kind, make_config(kind), backbone, 1, names, "a photo of a {}.")
        predict = predictive(method, SAMPLES)
        seconds = []
        for _ in range(1 + REPEATS):  # the first makes what is made once
            start = time.perf_counter()
            with torch.no_grad():
                predict(backbone.image(pixels)).probabilities.sum().item()  # waits for the device
            seconds.append(time.perf_counter() - start)
        parameters, rate = method.counted_parameters(), len(pixels) / median(seconds[1:])
        rows.append(
            MethodCost(label, parameters, int(theirs[label, "parameters"]), rate, theirs[label, "images/s"])
        )
    return rows


def class_names(tokenizer: AnyTokenizer, count: int) -> list[str]:
    """Random words, each one token, in names of ImageNet's lengths."""
    random = Random(0)
    drawn = [
        tokenizer.decode([random.randrange(512, tokenizer.vocab_size - 2)]).strip()
        for _ in range(WORDS_TRIED)
    ]
    words = [word for word in drawn if word.isascii() and word.isalpha() and len(tokenizer.encode(word)) == 1]
    lengths = random.choices(list(NAME_LENGTHS), list(NAME_LENGTHS.values()), k=count)
    return [" ".join(random.choices(words, k=length)) for length in lengths]


def random_images(backbone: Backbone, count: int) -> Tensor:
    """Preprocessed images."""
    size = backbone.preprocess.size
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(2))
    return images.to(backbone.device, backbone.dtype)
