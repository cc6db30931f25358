"""Part `fit`: from image files to a tuned method, the library's way against the plain one.

The library encodes every image once and trains on what it kept. The plain way reads and encodes a batch in
every step. Both see the same images in the same order with the same noise, so their losses can be compared.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.flops import step_flops
from benchmarks.speed.measuring import apart, on_cuda
from benchmarks.speed.pictures import make_dataset
from benchmarks.speed.plain import PlainLoss, plain_optimiser
from benchmarks.speed.rates import matrix_rate, seconds_of
from benchmarks.speed.setups import METHODS, OVERRIDES, SHOTS, TEMPLATE, Options, make_backbone, random_batch
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.learn import tune
from pbprompt.prompts.loop.loop import Run, train
from pbprompt.prompts.loop.step import learning_rate
from pbprompt.registry import find_method
from pbprompt.research.costs import class_names
from pbprompt.seeding import stream, stream_seed
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.decoding import squares_of
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.transforms import normalise
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.tokenizer import Tokenizer

SEED = 1
# Shots and epochs where they are not 4 and 8: with one image per step the plain way takes long.
SIZES = {"cocoop": (1, 2), "vpt": (1, 1)}
GOAL_CLASSES, GOAL_EPOCHS = 100, 50  # the run from cached features that a CPU should finish in minutes
# Run from cached features: each method as it is, and PBPrompt with what makes it faster at some cost.
LARGE_STEPS, ROUGH_PRODUCTS = ("batch_size=0", "learning_rate=5e-3"), ("text_products=bfloat16",)
CACHED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("coop", ()),
    ("pbprompt", ()),
    ("pbprompt", ROUGH_PRODUCTS),
    ("pbprompt", LARGE_STEPS),
    ("pbprompt", LARGE_STEPS + ROUGH_PRODUCTS),
)


@dataclass(frozen=True)
class Fit:
    """A method tuned on a few images of each class."""

    method: str
    backbone: str
    device: str
    dtype: str
    dataset: Dataset
    epochs: int


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row per method; then runs from cached features, which are the loop alone."""
    with tempfile.TemporaryDirectory() as folder:
        for fit in _fits(options, Path(folder)):
            yield row(fit)
    for tower in _towers(options):
        for method, overrides in CACHED:
            if on_cuda(options.device) and set(ROUGH_PRODUCTS) <= set(overrides):
                continue  # they are for a CPU
            yield apart(options.device, cached_row, method, overrides, tower, options)


def _towers(options: Options) -> list[tuple[str, str]]:
    """Backbones with their precision: the first for all methods, the others for two."""
    if options.quick:
        return [("tiny", "float32")]
    lite = [("lite", "float32")]
    return [("ViT-B/16", "float16"), *lite] if on_cuda(options.device) else lite


def _fits(options: Options, folder: Path) -> Iterator[Fit]:
    device = options.device
    if options.quick or on_cuda(device):
        shots, classes = (2, 4) if options.quick else (4, 101)
        whole = make_dataset(folder, Tokenizer(), shots * classes, shots)
    else:
        whole = open_dataset("sample").only("openmoji")
    for place, (backbone, dtype) in enumerate(_towers(options)):
        for method in ("coop", "pbprompt") if place else METHODS:
            shots, epochs = (1, 1) if options.quick else SIZES.get(method, (4, 8))
            yield Fit(method, backbone, device, dtype, draw(whole, shots, SEED).apply(whole), epochs)


def row(fit: Fit) -> dict[str, Any]:
    ours, our_loss = apart(fit.device, fit_ours, fit)
    plain, plain_loss = apart(fit.device, fit_plain, fit)
    return {
        "method": fit.method,
        "backbone": fit.backbone,
        "precision": fit.dtype,
        "classes": len(fit.dataset.classes),
        "images": len(fit.dataset.train),
        "epochs": fit.epochs,
        "from": "image files",
        "plain_s": plain,
        "ours_s": ours,
        "ratio": plain / ours,
        "plain_loss": plain_loss,
        "ours_loss": our_loss,
    }


def fit_ours(fit: Fit) -> tuple[float, float]:
    """Seconds and the last epoch's loss; features are encoded within the time, into an empty cache."""
    backbone = make_backbone(fit.backbone, fit.device, fit.dtype)
    kind = find_method(fit.method)
    config = make_config(kind, overrides=[*OVERRIDES[fit.method], f"epochs={fit.epochs}"])
    with tempfile.TemporaryDirectory() as cache:

        def whole() -> dict[str, float]:
            bank = FeatureCache(backbone, cache=Path(cache), progress=False)
            return tune(fit.dataset, bank, kind, config, FitOptions(shots=1, seed=SEED, progress=False))[1]

        seconds, terms = seconds_of(whole, fit.device)
    return seconds, terms["total"]


def fit_plain(fit: Fit) -> tuple[float, float]:
    """The same with the image tower in every step; other threads decode ahead."""
    backbone = make_backbone(fit.backbone, fit.device, fit.dtype)
    return seconds_of(lambda: _plain_epochs(fit, backbone), fit.device)


def _plain_epochs(fit: Fit, backbone: Backbone) -> float:
    kind = find_method(fit.method)
    config = make_config(kind, overrides=[*OVERRIDES[fit.method], f"epochs={fit.epochs}"])
    method = build_method(kind, config, backbone, SEED)
    method.prepare(fit.dataset.classes, fit.dataset.template)
    items, see = fit.dataset.train, backbone.preprocess
    size = method.images_a_step(len(items))
    loss, optimiser = PlainLoss(method, len(items)), plain_optimiser(method)
    noise = torch.Generator(fit.device if method.capturable else "cpu")
    step = 0
    for epoch in range(fit.epochs):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, epoch, fit.epochs)
        order = torch.randperm(len(items), generator=stream(SEED, "order", epoch)).tolist()
        loaded = squares_of([fit.dataset.file(items[i]) for i in order], see.cropper)
        losses = []
        for first in range(0, len(items) - size + 1, size):
            squares = torch.stack([torch.from_numpy(next(loaded)) for _ in range(size)])
            labels = torch.tensor([items[i].label for i in order[first : first + size]])
            with torch.no_grad():
                pixels = normalise(squares.to(backbone.device), see.mean, see.std)
                images = backbone.image(pixels)
            noise.manual_seed(stream_seed(SEED, "noise", step))
            total = loss(Batch(images, labels.to(backbone.device)), noise)
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            losses.append(total.detach())
            step += 1
    return torch.stack(losses).mean().item()


def cached_row(
    name: str, overrides: tuple[str, ...], tower: tuple[str, str], options: Options
) -> dict[str, Any]:
    """Seconds of a run from cached features.

    The whole of it is run, or on a CPU its time is told from its first steps. The floor is what its matrix
    products would take at this machine's best rate in their precision, measured in the same process.
    """
    backbone_name, dtype = tower
    backbone = make_backbone(backbone_name, options.device, dtype)
    classes, epochs = (6, 2) if options.quick else (GOAL_CLASSES, GOAL_EPOCHS)
    kind = find_method(name)
    config = make_config(kind, overrides=[f"epochs={epochs}", *overrides])
    method = build_method(kind, config, backbone, SEED)
    method.prepare(class_names(backbone.tokenizer, classes), TEMPLATE)
    images, labels, _ = random_batch(backbone, classes, classes * SHOTS)
    features = Features(images.global_, images.patches, labels)
    batch = method.images_a_step(len(features))
    steps = epochs * (len(features) // batch)
    measured = steps if options.whole or on_cuda(options.device) else min(steps, 100)
    job = Run(epochs, FitOptions(seed=SEED, max_steps=measured, progress=False))
    products = "bfloat16" if set(ROUGH_PRODUCTS) <= set(overrides) else dtype
    rate = matrix_rate(getattr(torch, products), options.device, options.quick)
    floor = steps * step_flops(method, batch, images.patches.shape[1]) / rate
    seconds, _ = seconds_of(lambda: train(method, lambda epoch: features, len(features), job), options.device)
    return {
        "method": name,
        "settings": " ".join(overrides) or None,
        "backbone": backbone_name,
        "precision": products,
        "classes": classes,
        "images": len(features),
        "epochs": epochs,
        "batch": batch,
        "from": "cached features",
        "ours_s": seconds * steps / measured,
        "floor_s": floor,
        "steps": steps,
        "steps_run": measured,
    }
