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

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.learners.memory import MemoryBesideText
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


@register("tip-adapter")
class TipAdapter(MemoryBesideText):
    """Text features for every name, and a vote of similar training images."""

    Config = TipAdapterConfig
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
    keys: Tensor

    def __new__(cls, config: TipAdapterConfig, backbone: Backbone) -> "TipAdapter":
        return super().__new__(TipAdapterF if config.finetune else cls)

    def __init__(self, config: TipAdapterConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        keys = torch.empty(0, backbone.embed_dim)
        self.keys = nn.Parameter(keys) if config.finetune else nn.Buffer(keys)
        self.labels = nn.Buffer(torch.empty(0, dtype=torch.long))
        self.searched = config.searches
        if self.searched:
            self.found = nn.Buffer(torch.tensor([config.alpha, config.beta], dtype=torch.float64))

    @classmethod
    def needs_validation(cls, config: MethodConfig) -> bool:
        assert isinstance(config, TipAdapterConfig)
        return config.searches and config.search_on == "validation"

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Fill the cache."""
        self.keys.data = unit(images.global_).to(self.keys)
        self.labels.data = labels.clone()
        self.remember()
        if self.searched and self.config.search_on == "left-out" and labels.bincount().max() > 1:
            self.choose(images, labels)

    def begin_on(self, views: EpochViews, seed: int) -> None:
        (first, patches), labels, _ = views(0)
        others = [views(epoch).images.global_ for epoch in range(1, self.config.key_views)]
        self.begin(Encoded(torch.stack([first, *others]).mean(0), patches), labels, seed)

    @torch.no_grad()
    def choose(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Search α and β by accuracy."""
        alphas = _grid(self.config.search_alpha, ALPHAS) or [self.config.alpha]
        betas = _grid(self.config.search_beta, BETAS) or [self.config.beta]
        weights = torch.tensor(alphas, device=labels.device).to(self.keys)[:, None, None]
        bank = self.class_features(1, torch.Generator())[0]
        sentences, votes = bank.tensor_split([self.keys.shape[1]], dim=1)
        right = torch.zeros(len(betas), len(alphas), dtype=torch.long)
        left_out = self.config.search_on == "left-out"  # the images are those of the keys
        rows = torch.arange(len(labels), device=labels.device)
        if left_out:
            rows = rows[labels.bincount()[labels] > 1]
        at_once = max(1, AFFINITIES // max(len(self.keys), len(alphas) * len(self.classes)))
        for some in rows.split(at_once):
            text = class_logits(images.global_[some], sentences, self.backbone.logit_scale)
            distance = 1 - unit(images.global_[some]).to(self.keys) @ self.keys.T
            if left_out:
                distance[torch.arange(len(some)), some] = torch.inf
            for place, beta in enumerate(betas):
                said = (text + weights * ((-beta * distance).exp() @ votes.T)).argmax(-1)
                right[place] += (said == labels[some]).sum(-1).cpu()
        best = int(right.flatten().argmax())  # the first of the best
        self.found[0], self.found[1] = alphas[best % len(alphas)], betas[best // len(alphas)]

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """For each class its sentence's feature and its column of L, side by side: [1, c, d + n]."""
        own = torch.tensor(self.labels_of_classes(), device=self.labels.device)
        votes = (own.unsqueeze(1) == self.labels).to(self.keys)
        return torch.cat([self._text.to(votes), votes], dim=1).unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        sentences, votes = features[0].tensor_split([self.keys.shape[1]], dim=1)
        alpha, beta = self.found.to(self.keys) if self.searched else (self.config.alpha, self.config.beta)
        parts = []
        for some in images.global_.split(max(1, AFFINITIES // len(self.keys))):
            affinity = (-beta * (1 - unit(some).to(self.keys) @ self.keys.T)).exp()
            text = class_logits(some, sentences, self.backbone.logit_scale)
            parts.append(text + alpha * affinity @ votes.T)
        return torch.cat(parts).unsqueeze(0)


class TipAdapterF(TipAdapter, Trained):
    """Its keys are trained too; `TipAdapter` is this one where `finetune` is set."""

    def epochs_for(self, shots: int) -> int:
        return 20


def _grid(most: float, values: int) -> list[float]:
    """0.1, …, short of `most`, in equal steps; none where there is nothing to search."""
    return [0.1 + step * (most - 0.1) / values for step in range(values)] if most else []
