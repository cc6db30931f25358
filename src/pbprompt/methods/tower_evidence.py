"""A tower tuned by its evidence: each photograph is told by the others of its class and by its name.

    loss_k = −(1/n) Σ_{i ∉ fold k} ln softmax_{y_i}( w_1 L_c(x_i; without i) + w_2 e^scale x_i·(t_c − t̄) )
    p(c | x) = (1/(K+1)) Σ_{k=0…K} p_k(c | x)^(1/T)           p_0 the frozen tower's, T = 1 there

| symbol | meaning                                                                                          |
|--------|--------------------------------------------------------------------------------------------------|
| x      | image feature of length 1 under adapter k, low-rank updates of the image tower                  |
| L_c    | log density of class c by its other photographs and its name, exact (`core/gaussian.py`)         |
| t_c    | what the name says; w, at every step, the weights of the two that tell the photographs best      |
| p_k    | the closed form (`conjugate`) of all photographs as tower k sees them                            |
| T      | the temperature by which photographs are told best that their adapter was not tuned on           |

No gradient passes through the shape of the classes (Σ): it moves with the features, step by step. Each of K
adapters leaves out its fold of the photographs, so that several are averaged, and so that how far to trust
them is known from photographs that were not trained on. Prior art: CLIP-LoRA; `conjugate` is all of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.clip.taps import Taps
from pbprompt.core.expert_weights import fit_weights
from pbprompt.core.gaussian import diagonalise, leave_one_out
from pbprompt.core.likelihood import unit
from pbprompt.core.posterior import judged_rows
from pbprompt.core.statistics import Statistics
from pbprompt.core.temperature import fit_temperature
from pbprompt.core.text_map import learn_text_map
from pbprompt.errors import InputError
from pbprompt.methods.abilities import LeavesOut, TellsFamiliarity
from pbprompt.methods.base import Batch, EpochViews, MethodConfig, Terms, cross_entropy_terms, setting
from pbprompt.methods.clip_lora import low_rank_taps
from pbprompt.methods.conjugate import Conjugate, ConjugateConfig
from pbprompt.registry import register

MOST = 4096  # photographs: all of them go through the tower at every step


@dataclass(frozen=True, kw_only=True)
class TowerEvidenceConfig(MethodConfig):
    """300 steps on all photographs at 5e-4, rank 2 on q, k and v of the last block."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd, adam or adamw")
    learning_rate: float = setting(5e-4, "highest learning rate; cosine to zero over the steps")
    weight_decay: float = setting(0.0, "weight decay of the optimiser")
    warmup_epochs: int = setting(0, "first epochs at a constant learning rate of 1e-5")
    batch_size: int = setting(0, "all images in every step: leave it at 0", least=0, most=0)
    epochs: int = setting(300, "steps, each on all training images")
    adapters: int = setting(2, "K, adapters that are averaged, beside the frozen tower", least=2, most=20)
    rank: int = setting(2, "rank of the updates of q, k and v", least=1)
    last: int = setting(1, "how many of the last blocks are updated; 0: all", least=0)


def left_out_terms(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "c d"], scale: float
) -> Terms:
    """−ln p of each photograph by the others and the names, on the average, among the classes with some."""
    present, labels = labels.unique(return_inverse=True)
    x, texts = unit(images).double(), texts[present].double()
    fixed = Statistics.of(x.detach(), labels, len(present))
    _, moved = learn_text_map(fixed.means, fixed.counts, texts)
    frame = diagonalise(fixed, moved)
    means = torch.zeros_like(fixed.sums).index_add(0, labels, x) / fixed.counts.unsqueeze(1)
    frame = frame._replace(means=means @ frame.basis - frame.centre)
    told = leave_one_out(frame, x, labels, x.new_ones(len(x)))
    experts = torch.stack([told.log_densities, scale * x @ (texts - texts.mean(0)).T])
    with torch.no_grad():
        density, name = (float(one.var(1).mean().sqrt()) if len(present) > 1 else 0.0 for one in experts)
        usual = x.new_tensor([0.5 * name / density if density > 0 and name > 0 else 0.1, 0.5])
        weights = fit_weights(experts.detach(), labels, usual).best
    logits = torch.tensordot(weights, experts, dims=1)
    return cross_entropy_terms(logits, labels)


def folds_of(frozen: Float[Tensor, "n d"], labels: Int[Tensor, " n"], folds: int) -> Int[Tensor, " n"]:
    """Each photograph's fold, dealt out within each class, whatever the order of the photographs."""
    draws = torch.Generator().manual_seed(0)
    line = unit(frozen).double() @ torch.randn(frozen.shape[1], generator=draws).to(frozen.device).double()
    order = torch.argsort(line).cpu()
    order = order[torch.argsort(labels.cpu()[order], stable=True)]
    counts = torch.bincount(labels.cpu())
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels.cpu()[order]]
    found = torch.empty_like(order)
    found[order] = (rank + labels.cpu()[order]) % folds
    return found.to(labels.device)


@register("tower-evidence")
class TowerEvidence(LeavesOut, TellsFamiliarity):
    """The closed form on a frozen tower, and on towers that its own left-out likelihood has tuned."""

    Config = TowerEvidenceConfig
    tags = ("closed form",)
    paper = "this library"
    needs_text = False
    tunes_towers = True
    config: TowerEvidenceConfig
    temperature: Tensor

    def __init__(self, config: TowerEvidenceConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        adapters = [
            low_rank_taps(backbone, "image", rank=config.rank, scale=config.rank**-0.5, last=config.last)
            for _ in range(config.adapters)
        ]
        self.tap([*adapters, Taps({})])
        # one for each adapter, and the last for the frozen tower
        self.readers = nn.ModuleList(Conjugate(ConjugateConfig(), backbone) for _ in (*adapters, None))
        self.register_buffer("temperature", torch.ones(()))

    @property
    def _towers(self) -> list[Conjugate]:
        return cast(list[Conjugate], list(self.readers))

    def trainable(self) -> list[nn.Parameter]:
        return list(self.image_taps.parameters())

    def prepare(self, classes: Sequence[str], template: str) -> None:
        for reader in self._towers:
            reader.prepare(classes, template)
        super().prepare(classes, template)
        self._names = self._towers[-1].texts(classes)

    def batch_for(self, examples: int) -> int:
        if examples > MOST:
            raise InputError(
                f"{self.name} takes up to {MOST:,} photographs, and there are {examples:,}: draw fewer "
                "shots, or use conjugate"
            )
        return examples

    def _parts(self, images: Encoded) -> list[Encoded]:
        """The images as each tower sees them."""
        parts = images.global_.split(self.given.embed_dim, dim=-1)
        return [Encoded(part, images.patches) for part in parts]

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        assert batch.frozen is not None
        folds, scale = folds_of(batch.frozen, batch.labels, self.config.adapters), self.given.logit_scale
        found = []
        for fold, part in enumerate(self._parts(batch.images)[:-1]):
            rows = (folds != fold).nonzero().squeeze(1)
            found.append(left_out_terms(part.global_[rows], batch.labels[rows], self._names, scale))
        # each adapter has a loss of its own: the sum gives each its gradient
        shown = {name: torch.stack([one[name] for one in found]).mean() for name in ("total", "accuracy")}
        return {**shown, "total": shown["total"] * len(found)}

    @torch.no_grad()
    def finish_on(self, views: EpochViews) -> None:
        """Read the photographs in closed form, as each tower sees them."""
        batch = self.encoded(views(0))
        assert batch.frozen is not None
        for reader, part in zip(self._towers, self._parts(batch.images), strict=True):
            reader.begin(part, batch.labels.clone(), 0)  # each has its own to save
            reader.finish()
        self.temperature.data.fill_(1.0)
        if (found := self._left_out()) is not None:
            own, _, labels = found
            self.temperature.data.fill_(fit_temperature(own.log(), labels, 1 / (len(labels) + 2)))

    def _left_out(self) -> "tuple[Float[Tensor, 'n c'], Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        """Of each photograph, what the tower says that was not tuned on it, and what the frozen one says."""
        found = [said for reader in self._towers if (said := reader.left_out()) is not None]
        if not found:
            return None
        frozen, labels = found[-1]
        reader = self._towers[-1]
        kept = reader.kept_labels
        rows = judged_rows(len(kept), len(reader.counts)).to(kept)
        present = torch.tensor(reader.labels_of_classes(), device=kept.device)
        rows = rows[(reader.counts[kept[rows]] > 1) & torch.isin(kept[rows], present)]
        folds = folds_of(reader.kept, kept, self.config.adapters)[rows]
        tuned = torch.stack([said for said, _ in found[:-1]])[folds, torch.arange(len(folds))]
        return tuned.clamp_min(1e-30), frozen, labels

    def left_out(self) -> "tuple[Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        found = self._left_out()
        if found is None:
            return None
        tuned, frozen, labels = found
        return ((tuned.log() / self.temperature).softmax(-1) + frozen) / 2, labels

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        """The draws of each reader, one after the other."""
        return torch.cat([reader.class_features(samples, generator) for reader in self._towers])

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        said = []
        banks = features.chunk(len(self._towers))
        for reader, part, bank in zip(self._towers, self._parts(images), banks, strict=True):
            logits = reader.sample_logits(part, bank)
            said.append(logits if reader is self._towers[-1] else logits.log_softmax(-1) / self.temperature)
        return torch.cat(said)

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """By the frozen tower: the others were tuned to tell the classes, not to know what is none."""
        return self._towers[-1].familiarity(self._parts(images)[-1])

    def found_by_name(self) -> float | None:
        return self._towers[-1].found_by_name()
