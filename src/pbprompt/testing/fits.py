"""What the checks work with: towers that take milliseconds, images, and methods fitted on them."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.fitted import ExpectsNames
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import Batch, Method, build_method
from pbprompt.learners.trained import Trained
from pbprompt.model.predictor import predict_features, predictive
from pbprompt.prompts.loop.loop import Run, batches, train
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.layers import BlockTower
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.resnet import ResNetConfig
from pbprompt.vision.towers.taps import Stem, Tap, Tapped, TappedTower, Taps
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import DinoConfig, VitConfig

Kind = type[Method]
Settings = dict[str, Any]

NAMES = ("cat", "dog", "red car")
CLASSES, SHOTS = 6, 4  # of the sample set
TINY_TEXT = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=3)


@cache
def tiny_vit(dtype: torch.dtype = torch.float32) -> Backbone:
    """A vision transformer and a text tower of random weights, which take milliseconds."""
    return random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 2, 4), TINY_TEXT)).to(dtype)


@cache
def tiny_resnet(dtype: torch.dtype = torch.float32) -> Backbone:
    """A residual network and a text tower of random weights, which take milliseconds."""
    vision = ResNetConfig(64, (1, 1, 1, 1), 16, 8)
    return random_backbone(BackboneConfig("tiny-resnet", 32, vision, TINY_TEXT)).to(dtype)


@cache
def tiny_dino() -> Backbone:
    """An image tower of random weights without a text tower beside it."""
    vision = DinoConfig(32, 8, 32, layers=2, heads=4, hidden=64, registers=2, rope_theta=100.0)
    return random_backbone(BackboneConfig("tiny-dino", 32, vision, None, "gelu"))


class Few(NamedTuple):
    backbone: Backbone
    classes: tuple[str, ...]
    template: str
    images: Features


@cache
def few_of_the_sample(name: str = "lite") -> Few:
    """A corner of the sample set, as `lite` sees it: six classes in one style, four images each.

    For methods that tune towers, `lite-vit`, and the states before its first block.
    """
    whole, lite = open_dataset("sample:fluent"), load_backbone(name)
    train = tuple(item for item in whole.train if item.label < CLASSES)
    small = replace(whole, classes=whole.classes[:CLASSES], train=train, val=(), test=())
    items = draw(small, SHOTS, seed=1).apply(small).train
    pixels = torch.stack([lite.preprocess(open_image(small.root / item.path)) for item in items])
    sees: Backbone = lite
    if isinstance(lite.visual, BlockTower):
        sees = Stem(lite, TappedTower(lite.visual, [Taps({0: Tap()})]))
    with torch.no_grad():
        seen = sees.image(pixels)
    labels = torch.tensor([item.label for item in items])
    return Few(lite, small.classes, small.template, Features(seen.global_, seen.patches.half(), labels))


def random_images(backbone: Backbone, labels: Int[Tensor, " n"] | None = None) -> Features:
    """Random features around one direction per class; four images of each of three classes, unless given."""
    labels = torch.arange(12) % 3 if labels is None else labels
    count, width, draws = len(labels), backbone.embed_dim, torch.Generator().manual_seed(0)
    centres = torch.randn(int(labels.max()) + 1, width, generator=draws)
    patches = torch.randn(count, backbone.grid[0] * backbone.grid[1], width, generator=draws)
    images = centres[labels] + torch.randn(count, width, generator=draws)
    return Features(images, patches.half(), labels)


def to_train_on(method: Method, images: Features) -> Features:
    """Random features as the states before the first touched block, of a method that tunes the image tower;
    for all others, themselves."""
    backbone = method.backbone
    if not isinstance(backbone, Tapped) or not isinstance(backbone.visual, TappedTower):
        return images
    stem, draws = backbone.stem, torch.Generator().manual_seed(1)
    own = torch.randn(stem.grid[0], stem.patch_width, generator=draws)
    lift = torch.randn(images.global_.shape[1], stem.patch_width, generator=draws)
    states = (own + (images.global_.cpu() @ lift).unsqueeze(1) / 4).to(backbone.device).half()
    tower, first = backbone.visual.tower, backbone.visual.first
    with torch.no_grad():
        frozen = tower.leave(tower.through(states.to(backbone.dtype), start=first))[0]
    return Features(frozen.float(), states, images.labels)


def from_the_first_block(method: Method, images: Features) -> Features:
    """What is before a tower's blocks, taken on to the first that the method touches."""
    tower = method.backbone.visual
    if not isinstance(tower, TappedTower):
        return images
    with torch.no_grad():
        states = tower.tower.through(images.patches.to(method.backbone.dtype), stop=tower.first)
    return Features(images.global_, states.half(), images.labels)


def as_tuned(method: Method, images: Features) -> Features:
    """What the method's towers make of what it was trained on."""
    if not isinstance(method, Trained):
        return images
    with torch.no_grad():
        batch = method.encoded(Batch(images.images, images.labels))
    return Features(batch.images.global_.float(), batch.images.patches.half(), images.labels)


def prepared(
    kind: Kind,
    settings: Settings,
    backbone: Backbone,
    classes: tuple[str, ...] = NAMES,
    template: str = "a {}.",
) -> Method:
    return build_method(kind, kind.Config(**settings), backbone, 1, classes, template)


def fitted(
    kind: Kind,
    settings: Settings,
    backbone: Backbone,
    classes: tuple[str, ...] = NAMES,
    images: Features | None = None,
    steps: int = 3,
    unseen: tuple[str, ...] = (),
) -> Method:
    """A method after a few steps, or as its names alone make it where it does not train."""
    method = prepared(kind, settings, backbone, classes)
    if isinstance(method, ExpectsNames):
        method.unseen_names = unseen
    if kind.trains:
        images = random_images(backbone) if images is None else images
        losses = train_recorded(method, to_train_on(method, images), max(3, steps), steps)
        demand(bool(torch.tensor(losses).isfinite().all()), "the loss is NaN or infinite")
    return method


def train_recorded(method: Method, images: Features, epochs: int, steps: int | None = None) -> list[float]:
    """Train and return the loss of every step: none where there is nothing to learn."""
    losses: list[Tensor] = []
    if not isinstance(method, Trained):
        assert isinstance(method, Memory)
        method.begin_on(batches(lambda epoch: images, method.backbone.device), 1)
        return []
    plain = method.loss

    def recorded(*arguments: Any) -> dict[str, Tensor]:
        terms = plain(*arguments)
        losses.append(terms["total"].detach())
        return terms

    method.loss = recorded  # type: ignore[method-assign, assignment]
    run = Run(epochs, FitOptions(seed=1, max_steps=steps, progress=False))
    train(method, lambda epoch: images, len(images), run)
    del method.loss
    return [loss.item() for loss in losses]


def probabilities(method: Method, images: Features, samples: int = 20) -> Float[Tensor, "n c"]:
    """Probabilities of images, which are some for every class."""
    seen = as_tuned(method, to_train_on(method, images))
    found = predict_features(predictive(method, samples, seed=5), seen).probabilities
    wanted = (len(images), len(method.classes))
    demand(found.shape == wanted, f"probabilities are of shape {tuple(found.shape)}, not {wanted}")
    demand(bool(((found.sum(-1) - 1).abs() < 1e-5).all()), "the probabilities of an image do not sum to 1")
    return found


def demand(holds: bool, otherwise: str) -> None:
    """Raise unless it holds, also where Python leaves assert statements out."""
    if not holds:
        raise AssertionError(otherwise)
