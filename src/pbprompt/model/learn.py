"""From a dataset to a method that has learned it: at once, or by the steps of `prompts/loop`; or, where an
image may have several labels, to the head that tells these."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.config import to_dict
from pbprompt.errors import InputError
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.learners import MultiLabel, TakesUnlabelled
from pbprompt.learners.fit_options import USUAL, FitOptions, Views
from pbprompt.learners.fitted import ExpectsNames
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.loop import EpochFeatures, Run, batches, train
from pbprompt.registry import methods
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.decoding import begun
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.taps import Tapped, TappedTower

Made = TypeVar("Made")


class Bank(Protocol):
    """Where the features of items come from."""

    @property
    def backbone(self) -> Backbone: ...

    def encode(self, root: Path, items: Sequence[Item]) -> Features: ...


def tune(
    dataset: Dataset, bank: Bank, kind: type[Method], config: MethodConfig, options: FitOptions = USUAL
) -> tuple[Method, dict[str, float]]:
    """Train a method on all of a dataset's training items; returns it with the last epoch's terms.

    What trains nothing only learns the names. A method that chooses by validation images does so on the
    dataset's.
    """
    if not dataset.train:
        raise InputError(f"{dataset.name} has no training items: nothing to tune on")
    backbone = bank.backbone
    method = build_method(kind, config, backbone, options.seed, dataset.classes, dataset.template)
    if isinstance(method, ExpectsNames):
        method.unseen_names = options.unseen_names
    weights, groups, pool = options.weights, options.groups, options.unlabelled
    counted = None if weights is None else relative_weights(method, dataset.train, weights)
    if pool is not None and isinstance(method, Trained):
        check_unlabelled(method).add_unlabelled(pool)  # which says that it takes them later
    elif pool is not None:
        check_unlabelled(method)
    counted, groups, pool = (
        None if one is None else one.to(backbone.device) for one in (counted, groups, pool)
    )
    options.announce(method)
    chooses = kind.needs_validation(config)
    if chooses and not dataset.val:
        raise InputError(
            f"{dataset.name} has no validation images, on which {method.name} chooses by these settings: "
            "give it some, or take a preset that searches nothing"
        )
    terms: dict[str, float] = {}
    if isinstance(method, Trained):
        terms = _train(method, dataset, bank, options, counted)
    elif isinstance(method, Memory):
        if config.epochs or config.budget:
            raise InputError(f"{method.name} has nothing to train by steps: leave epochs and budget at 0")
        features = epoch_features(bank, dataset.single_label(), options.seed, options.views, epochs=0)
        views = batches(features, backbone.device)
        method.begin_on(views, options.seed, weights=counted, groups=groups, unlabelled=pool)
    elif any(parameter.requires_grad for parameter in method.parameters()):
        raise InputError(f"{method.name} has parameters to train: derive it from pbprompt.Trained")
    if chooses:
        held_out = bank_on(bank, method.backbone).encode(dataset.root, dataset.val).to(backbone.device)
        method.choose(held_out.images, held_out.labels)
    return method, terms


def check_multi_label(kind: type[Method]) -> None:
    """Refuse a method that is single-label alone, and name those that are not."""
    able = [name for name, other in methods().items() if issubclass(other, MultiLabel)]
    if kind.name not in able:
        raise InputError(f"{kind.name} is single-label: to fit a multi-label table, use {', '.join(able)}")


def fit_labels(
    dataset: Dataset, bank: Bank, kind: type[Method], config: MethodConfig, options: FitOptions
) -> tuple[Method, LabelHead]:
    """A method prepared for the dataset's labels, and the head that is fitted to all training images."""
    check_multi_label(kind)
    method = build_method(kind, config, bank.backbone, options.seed, dataset.classes, dataset.template)
    options.announce(method)
    if len(dataset.train) < 2:
        raise InputError(f"{dataset.name} has {len(dataset.train)} training images: give two or more")
    wanted = targets(dataset.train, len(dataset.classes))
    for name, count in zip(dataset.classes, wanted.sum(0).tolist(), strict=True):
        if count == len(wanted):
            raise InputError(
                f"{dataset.name}: every training image has the label {name!r}, so nothing tells it apart: "
                "leave it out, or add images without it"
            )
        if not count and not method.takes_new_names:
            raise InputError(
                f"{dataset.name}: no training image has the label {name!r}, and {method.name} with these "
                "settings reads no names: give it some, or another prior"
            )
    features = bank.encode(dataset.root, dataset.train)
    device = method.backbone.device
    images = Encoded(features.global_.to(device), features.patches)
    assert isinstance(method, MultiLabel)  # as `check_multi_label` saw to
    return method, method.label_head(images, wanted.to(device))


def targets(items: Sequence[Item], classes: int) -> Float[Tensor, "n k"]:
    """1 where an image has a label, 0 where not."""
    table = torch.zeros(len(items), classes)
    for row, item in enumerate(items):
        table[row, list(item.labels)] = 1
    return table


def _train(
    method: Trained, dataset: Dataset, bank: Bank, options: FitOptions, weights: Float[Tensor, " n"] | None
) -> dict[str, float]:
    """By steps, as many as its settings or its own schedule say."""
    shots = options.shots or (dataset.drawn.shots if dataset.drawn else 0)
    shots = shots or max(Counter(item.label for item in dataset.single_label().train).values())
    epochs, budget = method.schedule(shots, len(dataset.train))
    identity = run_identity(dataset, method, options, epochs, budget, weights)
    source = bank
    if isinstance(tapped := method.backbone, Tapped) and isinstance(tapped.visual, TappedTower):
        source = bank_on(bank, tapped.stem)
    features = epoch_features(source, dataset, options.seed, options.views, epochs, method.crops)
    return train(method, features, len(dataset.train), Run(epochs, options, identity, budget, weights))


def bank_on(bank: Bank, backbone: Backbone) -> Bank:
    """The bank with another backbone, such as one that a method has tuned."""
    if bank.backbone is backbone or bank.backbone.fingerprint == backbone.fingerprint:
        return bank
    if not isinstance(bank, FeatureCache):
        raise InputError(
            "features that are given are of the frozen towers, and this method tunes them: give a folder or "
            "a table of images"
        )
    return bank.on(backbone)


def check_unlabelled(method: Method) -> TakesUnlabelled:
    """Refuse a method that has no use for images without a label."""
    if not isinstance(method, TakesUnlabelled):
        raise InputError(
            f"{method.name} learns nothing from unlabelled images: leave them out, or use conjugate"
        )
    return method


def epoch_features(
    bank: Bank, dataset: Dataset, seed: int, views: Views, epochs: int, crops: int = 0
) -> EpochFeatures:
    """What each epoch trains on; with centre crops, so many random ones come in turn after them."""
    if views == "centre":
        kept = bank.encode(dataset.root, dataset.train)
        if crops and isinstance(bank, FeatureCache):
            more = bank.fixed_views(dataset.root, dataset.train, seed=seed, views=crops)
            kept = Features.concatenate([kept, more])
    elif not isinstance(bank, FeatureCache):
        raise InputError(f"views {views!r}: features that are given have no other views: use 'centre'")
    elif views == "fresh":

        def fresh(epoch: int) -> Features:
            return bank.views(dataset.root, dataset.train, seed=seed, epoch=epoch)

        # beside a GPU the processors are free to decode; several processes would meet in another order
        alone = bank.backbone.device.type == "cuda" and distributed.world()[1] == 1
        return one_ahead(fresh, epochs) if alone else fresh
    else:
        kept = bank.fixed_views(dataset.root, dataset.train, seed=seed, views=int(views))
    kept, count = kept.to(bank.backbone.device), len(dataset.train)
    draws = len(kept) // count
    return lambda epoch: kept.subset(slice(epoch % draws * count, (epoch % draws + 1) * count))


def one_ahead(make: Callable[[int], Made], count: int) -> Callable[[int], Made]:
    """`make` of 0 to count − 1, where asking for one starts the next in the background.

    What `make` raises comes when its result is asked for.
    """
    ready: dict[int, Future[Made]] = {}

    def get(epoch: int) -> Made:
        made = (ready.pop(epoch, None) or begun(partial(make, epoch))).result()
        if epoch + 1 < count:  # Ctrl-C need not wait for an epoch that nobody will train on
            ready[epoch + 1] = begun(partial(make, epoch + 1))
        return made

    return get


def relative_weights(
    method: Method, items: Sequence[Item], weights: Mapping[str, float]
) -> Float[Tensor, " n"]:
    """How often each item counts, once on the average; refused where a method has no such thing."""
    if not method.takes_weights:
        raise InputError(
            f"{method.name} cannot weigh images: give no weights, or use a method that can, such as "
            "conjugate or pbprompt"
        )
    given = torch.tensor([weights[item.path] for item in items], dtype=torch.float64)
    return given / given.mean()


def run_identity(
    dataset: Dataset,
    method: Trained,
    options: FitOptions,
    epochs: int,
    budget: int = 0,
    weights: Float[Tensor, " n"] | None = None,
) -> str:
    """A name for exactly this training run."""
    facts: list[Any] = [dataset.content_hash, dataset.template, method.given.fingerprint, method.name]
    facts += [to_dict(method.config), options.unseen_names, options.seed, epochs, options.views]
    facts += [budget] if budget else []
    if method.given.dtype != torch.float32:
        facts.append(str(method.given.dtype))
    if weights is not None:
        facts.append(weights.tolist())
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
