"""CLAP: prototypes held near the text as far as the text is right (Silva-Rodríguez et al., CVPR 2024).

    p(y = c | x) = softmax_c( s·cos(f(x), w_c) )
    loss = −log p(y | x) + (1/C) Σ_c λ_c·‖w_c − t_c‖²
    λ_c  = mean over the training images of class c of zero-shot's p(y = c | x)

t_c is the sentence's text feature, not normalised; w_c the learned prototypes, t_c + `residuals`; λ_c is
estimated once, never searched. The zero-shot-initialised probe of the same paper, without the constraint, is
the variant `zs-lp`. The paper trains on twenty augmented views per image; here it is on the run's own views.
Chosen here: a class without images is held with λ = 1, since nothing speaks against its sentence, and a name
that comes later is its sentence.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from pbprompt.evidence.rivals.taskres import TextResidual
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, kw_only=True)
class CLAPConfig(MethodConfig):
    """The published recipe: SGD at 0.1 without weight decay, batches of 256, 300 epochs."""

    learning_rate: float = setting(0.1, "highest learning rate; cosine to zero over the epochs")
    weight_decay: float = setting(0.0, "weight decay of the optimiser")
    batch_size: int = setting(256, "images per step")
    constrained: bool = setting(True, "hold the prototypes near the text; false: ZS-LP")


@register("clap")
class CLAP(TextResidual):
    """A prototype per class that starts at its sentence and is held there."""

    Config = CLAPConfig
    variants = {"zs-lp": {"constrained": False}}
    paper = "Silva-Rodríguez et al., CVPR 2024"
    config: CLAPConfig

    def __init__(self, config: CLAPConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.multipliers = nn.Buffer(torch.empty(0))

    @torch.no_grad()
    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        super().begin(images, labels, seed)
        logits = class_logits(images.global_, self._text, self.backbone.logit_scale)
        members = F.one_hot(labels, len(self.classes)).to(logits)
        counts = members.sum(0)
        found = (logits.softmax(-1) * members).sum(0) / counts
        self.multipliers.data = torch.where(counts > 0, found, 1.0).to(self.multipliers)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        terms = super().loss(batch, generator, examples)
        if not self.config.constrained:
            return terms
        constraint = (self.multipliers * self.residuals.square().sum(1)).mean()
        return {**terms, "total": terms["total"] + constraint, "constraint": constraint}

    def epochs_for(self, shots: int) -> int:
        return 300
