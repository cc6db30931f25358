"""Tip-Adapter: zero-shot CLIP plus a cache of the training images (Zhang et al., ECCV 2022).

    logits(x) = s·f·Wᵀ + α·exp(−β·(1 − f·Kᵀ))·L                      f = f(x)/‖f(x)‖

W are the unit text features of the dataset's template, [c, d]; K the unit training features, `keys`, [n, d];
L their one-hot labels, [n, c]. A new class name has its sentence and no images: the cache adds nothing to it.
With `finetune` (Tip-Adapter-F) the keys are started at the features and trained by cross-entropy; they are
not normalised again. The cache holds the training images as the first epoch has them, or the means of their
features over the first `key_views` epochs.

With `search_alpha` or `search_beta` the two are searched after training, as the authors do: the pair of a
grid that is most often right on the validation images, among equals that of the least β, then α. A recipe
gives all validation images, `fit` those that it draws, so that others are left to calibrate on. The bounds
are the authors' by dataset; those of the preset `published` are for ImageNet, OxfordPets and UCF101. The
preset `left-out` needs no validation image: it searches, to the widest of the authors' bounds and before any
training, by the training images of classes that have several, each without its own key.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.learners.memory import Memory, Remembered, TrainingImages
from pbprompt.learners.method import EpochViews, MethodConfig, setting
from pbprompt.learners.trained import Trained
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

AFFINITIES = 1 << 26  # images × cached images held at once
BETAS, ALPHAS = 200, 20  # values of the authors' grids


@dataclass(frozen=True, kw_only=True)
class TipAdapterConfig(MethodConfig):
    """Training-free; with `finetune`, 20 epochs of AdamW in batches of 256."""

    optimiser: Literal["sgd", "adamw"] = setting("adamw", "sgd or adamw")
    learning_rate: float = setting(1e-3, "highest learning rate; cosine to zero over the epochs")
    weight_decay: float = setting(0.01, "weight decay of the optimiser")
    warmup_epochs: int = setting(0, "first epochs at a constant learning rate of 1e-5")
    batch_size: int = setting(256, "images per step")
    epochs: int = setting(0, "passes over the training images; 0: 20 with finetune, else none")
    finetune: bool = setting(False, "train the cached features (Tip-Adapter-F)")
    alpha: float = setting(1.0, "α, weight of the cache against the text")
    beta: float = setting(5.5, "β, sharpness of the cache")
    key_views: int = setting(1, "epochs whose views of an image make its key, by their mean", least=1)
    search_alpha: float = setting(0.0, "search α on validation images up to this; 0: no search", least=0)
    search_beta: float = setting(0.0, "search β on validation images up to this; 0: no search", least=0)
    search_on: Literal["validation", "left-out"] = setting(
        "validation", "left-out: search on the training images instead, each left out"
    )

    @property
    def searches(self) -> bool:
        """Whether α or β is searched."""
        return self.search_alpha > 0 or self.search_beta > 0


@dataclass(frozen=True, eq=False)
class Cache(Remembered):
    keys: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    found: Float[Tensor, "2"] | None = None
    """α and β that were searched"""
    alpha: float = 1.0
    beta: float = 5.5

    def bank(self, samples: int = 1) -> Float[Tensor, "s c dn"]:
        """For each class its sentence's feature and its column of L, side by side."""
        own = torch.tensor(self.asked.labels, device=self.labels.device)
        votes = (own.unsqueeze(1) == self.labels).to(self.keys)
        return torch.cat([self.asked.texts.to(votes), votes], dim=1).unsqueeze(0)

    def logits(self, images: Encoded, bank: Float[Tensor, "s c dn"]) -> Float[Tensor, "s b c"]:
        sentences, votes = bank[0].tensor_split([self.keys.shape[1]], dim=1)
        alpha, beta = (self.alpha, self.beta) if self.found is None else self.found.to(self.keys)
        parts = []
        for some in images.global_.split(max(1, AFFINITIES // len(self.keys))):
            affinity = (-beta * (1 - unit(some).to(self.keys) @ self.keys.T)).exp()
            text = class_logits(some, sentences, self.asked.scale)
            parts.append(text + alpha * affinity @ votes.T)
        return torch.cat(parts).unsqueeze(0)


@register("tip-adapter")
class TipAdapter(Memory):
    """Text features for every name, and a vote of similar training images."""

    Config = TipAdapterConfig
    makes = Cache
    presets = {
        "published": {
            "key_views": 10,
            "adam_epsilon": 1e-4,
            "anneal": "step",
            "alpha": 1.17,  # α and β that keys are trained with; α is 1.17 to 10 on other datasets
            "beta": 1.0,
            "search_alpha": 3.0,
            "search_beta": 7.0,
        },
        "left-out": {"search_alpha": 50.0, "search_beta": 50.0, "search_on": "left-out"},
    }
    variants = {"f": {"finetune": True}}
    promptless = "votes by its images"
    paper = "Zhang et al., ECCV 2022"
    config: TipAdapterConfig

    def __new__(cls, config: TipAdapterConfig, backbone: Backbone) -> "TipAdapter":
        return super().__new__(TipAdapterF if config.finetune else cls)

    @classmethod
    def needs_validation(cls, config: MethodConfig) -> bool:
        assert isinstance(config, TipAdapterConfig)
        return config.searches and config.search_on == "validation"

    def hold(self, fitted: Cache) -> None:
        super().hold(replace(fitted, alpha=self.config.alpha, beta=self.config.beta))

    def fit(self, shown: TrainingImages) -> Cache:
        """Fill the cache."""
        config, labels = self.config, shown.labels.clone()
        cache = Cache(shown.asked, unit(shown.images.global_), labels)
        if not config.searches:
            return cache
        if config.search_on == "left-out" and labels.bincount().max() > 1:
            return replace(cache, found=search(cache, shown.images, labels, config))
        found = torch.tensor([config.alpha, config.beta], dtype=torch.float64, device=labels.device)
        return replace(cache, found=found)

    def begin_on(self, views: EpochViews, seed: int, **more: Tensor | None) -> None:
        (first, patches), labels, _ = views(0)
        others = [views(epoch).images.global_ for epoch in range(1, self.config.key_views)]
        self.begin(Encoded(torch.stack([first, *others]).mean(0), patches), labels, **more)

    def choose(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Search α and β by accuracy."""
        cache = self.known()
        self.hold(replace(cache, found=search(cache, images, labels, self.config)))


class TipAdapterF(TipAdapter, Trained):
    """Its keys are trained too; `TipAdapter` is this one where `finetune` is set."""

    learned = ("keys",)

    def __init__(self, config: TipAdapterConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.keys = nn.Parameter(torch.empty(0, backbone.embed_dim))

    def epochs_for(self, shots: int) -> int:
        return 20


@torch.no_grad()
def search(
    cache: Cache, images: Encoded, labels: Int[Tensor, " n"], config: TipAdapterConfig
) -> Float[Tensor, "2"]:
    """α and β that are most often right on the images: those of the keys, if they are left out."""
    alphas = _grid(config.search_alpha, ALPHAS) or [config.alpha]
    betas = _grid(config.search_beta, BETAS) or [config.beta]
    weights = torch.tensor(alphas, device=labels.device).to(cache.keys)[:, None, None]
    sentences, votes = cache.bank()[0].tensor_split([cache.keys.shape[1]], dim=1)
    right = torch.zeros(len(betas), len(alphas), dtype=torch.long)
    left_out = config.search_on == "left-out"
    rows = torch.arange(len(labels), device=labels.device)
    if left_out:
        rows = rows[labels.bincount()[labels] > 1]
    at_once = max(1, AFFINITIES // max(len(cache.keys), len(alphas) * len(cache.classes)))
    for some in rows.split(at_once):
        text = class_logits(images.global_[some], sentences, cache.asked.scale)
        distance = 1 - unit(images.global_[some]).to(cache.keys) @ cache.keys.T
        if left_out:
            distance[torch.arange(len(some)), some] = torch.inf
        for place, beta in enumerate(betas):
            found = (text + weights * ((-beta * distance).exp() @ votes.T)).argmax(-1)
            right[place] += (found == labels[some]).sum(-1).cpu()
    best = int(right.flatten().argmax())  # the first of the best
    pair = [alphas[best % len(alphas)], betas[best // len(alphas)]]
    return torch.tensor(pair, dtype=torch.float64, device=labels.device)


def _grid(most: float, values: int) -> list[float]:
    """0.1, …, short of `most`, in equal steps; none where there is nothing to search."""
    return [0.1 + step * (most - 0.1) / values for step in range(values)] if most else []
