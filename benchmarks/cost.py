"""The paper's table of computation cost on the machine at hand: parameters, and images predicted per second.

    python -m benchmarks.cost                 ViT-B/16 of random weights, 101 classes as Food101 has
    python -m benchmarks.cost --device cuda

A prediction is the image tower and the method's logits; class features are made once, as they are in use.
Decoding is left out. The paper's column is from another machine: only the ratios can be compared.
"""

import argparse
import time

import torch
from torch import Tensor

from benchmarks.speed.setups import class_names, make_backbone, random_images
from pbprompt.clip.backbone import Backbone
from pbprompt.markdown import table
from pbprompt.methods.base import build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.report.published import published

CLASSES = 101
SAMPLES = 10  # the paper's, in this table
ROWS = {"CoOp": "coop", "CoCoOp": "cocoop", "PLOT(N=4)": "plot", "PBPrompt": "pbprompt"}


def measured(name: str, backbone: Backbone, images: Tensor, classes: int, repeats: int) -> tuple[int, float]:
    """(learnable parameters as its paper counts them, images per second) of a method."""
    kind = find_method(name)
    method = build_method(kind, make_config(kind), backbone, seed=1)
    method.prepare(class_names(backbone.tokenizer, classes), "a photo of a {}.")
    predict = predictive(method, SAMPLES)
    seconds = []
    for _ in range(repeats + 1):  # the first makes what is made once
        start = time.perf_counter()
        with torch.no_grad():
            predict(backbone.image(images)).probabilities.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return method.counted_parameters(), len(images) / sorted(seconds[1:])[repeats // 2]


def cost_table(backbone: Backbone, images: Tensor, classes: int = CLASSES, repeats: int = 3) -> str:
    """Ours beside the paper's figures."""
    theirs = {(figure.method, figure.metric): figure.value for figure in published("computation_cost")}
    rows = []
    for label, name in ROWS.items():
        parameters, rate = measured(name, backbone, images, classes, repeats)
        known = (f"{theirs[label, 'parameters']:,.0f}", f"{theirs[label, 'images/s']:.0f}")
        rows.append((label, f"{parameters:,}", known[0], f"{rate:.1f}", known[1]))
    head = ("method", "parameters", "published", "images/s", "published")
    return table(head, rows, figures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--images", type=int, default=16, help="images at once")
    options = parser.parse_args()
    backbone = make_backbone("ViT-B/16", options.device)
    print(cost_table(backbone, random_images(backbone, options.images)))


if __name__ == "__main__":
    main()
