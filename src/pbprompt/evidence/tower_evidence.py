"""A tower tuned by its evidence: each photograph is told by the others of its class and by its name.

    z_ic = x_i·μ_c − ½ ‖μ_c‖²,   μ_c = (κ m_c + Σ_{j≠i, y_j=c} x_j) / (κ + n_c − [y_i = c])
    loss = −(1/n) Σ_i ln softmax_{y_i}( z_i / τ )
    p(c | x) = (1/(K+1)) Σ_{k=0…K} p_k(c | x)                                 p_0 the frozen tower's

| symbol | meaning                                                                                          |
|--------|--------------------------------------------------------------------------------------------------|
| x      | image feature of length 1 under adapter k, low-rank updates of the image tower                  |
| m_c    | where the name says that its class lies: b + s t̃_c, b the mean of the class means, t̃ centred     |
| κ      | how many photographs a name is worth; s: the slope that fits the class means best                |
| τ      | at every step, the temperature that tells the photographs best: no gradient passes, nor by m    |
| p_k    | the closed form (`conjugate`) of all photographs, their centre crops, as tower k sees them       |

With one photograph per class nothing is tuned, and the answer is the frozen tower's: there are no others.
It learns from random crops (`views`) beside the centre, so that it does not learn its photographs by heart.
Tuned towers are too sure, having learned from the same photographs that are read: the mean with the frozen
tower tempers that, and what `conjugate` promises by left-out photographs is promised by validation images
alone. Prior art: CLIP-LoRA, prototypical networks (Snell et al., NeurIPS 2017); `conjugate` is all of the
rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.learners.method import Batch, EpochViews, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, cross_entropy_terms
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.taps import Taps, low_rank_taps

KAPPA = 1.0
LEAST = 128  # photographs per step, where there are so many
PER_CLASS = 2  # and so many of each class, on the average


@dataclass(frozen=True, kw_only=True)
class TowerEvidenceConfig(MethodConfig):
    """300 steps at 5e-4, rank 2 on q, k and v of all blocks."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd, adam or adamw")
    learning_rate: float = setting(5e-4, "highest learning rate; cosine to zero over the steps")
    weight_decay: float = setting(0.0, "weight decay of the optimiser")
    warmup_epochs: int = setting(0, "first epochs at a constant learning rate of 1e-5")
    batch_size: int = setting(0, "images per step; 0: 128, or two per class where that is more")
    budget: int = setting(300, "steps in all", least=1)
    anneal: Literal["epoch", "step"] = setting("step", "how often the learning rate falls")
    views: int = setting(6, "random crops of each photograph to learn from, beside the centre", least=0)
    adapters: int = setting(1, "K, adapters that are averaged, beside the frozen tower", least=1, most=20)
    rank: int = setting(2, "rank of the updates of q, k and v", least=1)
    last: int = setting(0, "how many of the last blocks are updated; 0: all", least=0)


def left_out_terms(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "c d"]
) -> Terms:
    """−ln p of each photograph by the others and the names, on the average, among the classes with some."""
    present, labels = labels.unique(return_inverse=True)
    x, names = unit(images).double(), unit(texts[present]).double()
    counts = torch.bincount(labels).to(x).unsqueeze(1)
    sums = torch.zeros_like(names).index_add(0, labels, x)
    with torch.no_grad():
        means, names = sums / counts, names - names.mean(0)
        centre = means.mean(0)
        slope = (names * (means - centre)).sum() / names.square().sum().clamp_min(1e-12)
        priors = centre + slope.clamp_min(0) * names
    whole = (KAPPA * priors + sums) / (KAPPA + counts)
    own = (KAPPA * priors + sums)[labels] - x
    own = own / (KAPPA - 1 + counts[labels])
    told = x @ whole.T - whole.square().sum(1) / 2
    told = told.scatter(1, labels.unsqueeze(1), ((x - own / 2) * own).sum(1, keepdim=True))
    return cross_entropy_terms(told / fit_temperature(told, labels, 1 / (len(labels) + 2)), labels)


@register("tower-evidence")
class TowerEvidence(Trained):
    """The closed form on a frozen tower, and on towers that photographs left out have tuned."""

    Config = TowerEvidenceConfig
    revision = 3
    tags = ("closed form",)
    promptless = "asks a reader for each tower"
    paper = "this library"
    needs_text = False
    tunes_towers = True
    config: TowerEvidenceConfig

    def __init__(self, config: TowerEvidenceConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        adapters = [
            low_rank_taps(backbone, "image", rank=config.rank, scale=config.rank**-0.5, last=config.last)
            for _ in range(config.adapters)
        ]
        self.tap([*adapters, Taps({})])
        self.crops = config.views
        # one for each adapter, and the last for the frozen tower
        self.readers = nn.ModuleList(Conjugate(ConjugateConfig(), backbone) for _ in (*adapters, None))

    @property
    def _towers(self) -> list[Conjugate]:
        return cast(list[Conjugate], list(self.readers))

    def trainable(self) -> list[nn.Parameter]:
        return list(self.image_taps.parameters())

    def prepare(self, classes: Sequence[str], template: str) -> None:
        for reader in self._towers:
            reader.prepare(classes, template)
        super().prepare(classes, template)
        self._names = self._towers[-1].sight.read(classes)

    def batch_for(self, examples: int) -> int:
        return max(LEAST, PER_CLASS * len(self.classes))

    def _parts(self, images: Encoded) -> list[Encoded]:
        """The images as each tower sees them."""
        parts = images.global_.split(self.given.embed_dim, dim=-1)
        return [Encoded(part, images.patches) for part in parts]

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        tuned = self._parts(batch.images)[:-1]
        found = [left_out_terms(part.global_, batch.labels, self._names) for part in tuned]
        # each adapter has a loss of its own: the sum gives each its gradient
        shown = {name: torch.stack([one[name] for one in found]).mean() for name in ("total", "accuracy")}
        # by its name alone a photograph teaches what names say, not how photographs are alike
        has_others = len(batch.labels.unique()) < len(batch.labels)
        return {**shown, "total": shown["total"] * len(found) * has_others}

    @torch.no_grad()
    def finish_on(self, views: EpochViews) -> None:
        """Read the photographs in closed form, as each tower sees their centre crops."""
        batch = self.encoded(views(0))
        for reader, part in zip(self._towers, self._parts(batch.images), strict=True):
            reader.begin(part, batch.labels.clone())  # each has its own to save

    def add_unlabelled(self, images: Float[Tensor, "m d"], *, to_classify: bool = False) -> None:
        """Each tower has its own features of them, once it is tuned."""
        parts = images.split(self.given.embed_dim, dim=-1)
        if len(parts) != len(self._towers):
            raise InputError(
                f"{self.name} takes unlabelled images once its tower is tuned: fit it without them, and ask "
                "`predict` or `evaluate` with --together"
            )
        for reader, part in zip(self._towers, parts, strict=True):
            reader.add_unlabelled(part, to_classify=to_classify)

    def begin_by_names(self, unlabelled: Float[Tensor, "m d"]) -> None:
        raise InputError(f"{self.name} tunes a tower by labelled images: without any, use conjugate")

    @property
    def absorbed(self) -> Absorbed | None:
        """By the frozen tower, which has not learned its photographs by heart."""
        return self._towers[-1].absorbed

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        """The draws of each reader, one after the other."""
        return torch.cat([reader.class_features(samples, generator) for reader in self._towers])

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        parts, banks = self._parts(images), features.chunk(len(self._towers))
        answers = zip(self._towers, parts, banks, strict=True)
        return torch.cat([reader.sample_logits(part, bank) for reader, part, bank in answers])

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """By the frozen tower: the others were tuned to tell the classes, not to know what is none."""
        familiarity: Tensor | None = self._towers[-1].fitted.familiarity(self._parts(images)[-1])
        return familiarity

    def found_by_name(self) -> float | None:
        return self._towers[-1].known().found_by_name()

    def told_by_names(self) -> float | None:
        return self._towers[-1].known().told_by_names()
