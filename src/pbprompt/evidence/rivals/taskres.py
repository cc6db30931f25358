"""TaskRes: a learned residual on the text feature of every class (Yu et al., CVPR 2023).

    p(y = c | x) = softmax_c( s·cos(f(x), t_c + α·r_c) )

t_c is the sentence's text feature, not normalised, r_c are `residuals`, [c, d], from 0. α is published as
0.5, but 1 on Flowers102. This is the regular TaskRes; the enhanced one starts from a text projection that was
tuned before. A name without images has no residual: it is its sentence. In the published number of steps the
numbers of a residual grow to a tenth or two, so that it counts for less the longer a backbone's text features
are: those of `lite` have a length of 19, and TaskRes stays near zero-shot there with the published α.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.learners.memory import MemoryBesideText
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, cross_entropy_terms
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, kw_only=True)
class TaskResConfig(MethodConfig):
    """The published recipe: Adam at 2e-3 (2e-4 on ImageNet), batches of 256, 100 or 200 epochs by shots."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd (momentum 0.9), adam or adamw")
    batch_size: int = setting(256, "images per step")
    alpha: float = setting(0.5, "α, scale of the residual")


class TextResidual(MemoryBesideText, Trained):
    """Class features t_c + scale·r_c, with t_c the sentence's feature and r_c learned from 0.

    A name without images has no residual: it is its sentence.
    """

    residual_scale = 1.0

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.residuals = nn.Parameter(torch.empty(0, backbone.embed_dim))

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Start every class at its sentence."""
        self.residuals.data = self.residuals.new_zeros(self._text.shape)
        self.remember()

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        own = torch.tensor(self.labels_of_classes(), device=self.residuals.device)
        residuals = self.residuals[own] * (own >= 0).unsqueeze(1)
        return (self._text.to(residuals) + self.residual_scale * residuals).unsqueeze(0)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        features = self._text.to(self.residuals) + self.residual_scale * self.residuals
        logits = class_logits(batch.images.global_, features, self.backbone.logit_scale)
        return cross_entropy_terms(logits, batch.labels)


@register("taskres")
class TaskRes(TextResidual):
    """A residual per class, tuned by cross-entropy."""

    Config = TaskResConfig
    presets = {"flowers": {"alpha": 1.0}, "imagenet": {"learning_rate": 2e-4}}
    takes_weights = True
    paper = "Yu et al., CVPR 2023"
    config: TaskResConfig

    def __init__(self, config: TaskResConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.residual_scale = config.alpha

    def epochs_for(self, shots: int) -> int:
        return 100 if shots <= 4 else 200
