"""What methods share that learn one vector per class beside its sentence: vectors, names, and the loss."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core.likelihood import class_logits
from pbprompt.errors import InputError
from pbprompt.methods.base import Batch, MethodConfig, Terms, cross_entropy_terms
from pbprompt.methods.exemplars import Memory
from pbprompt.methods.zeroshot import sentence_features


class TextResidual(Memory):
    """Class features t_c + scale·r_c, with t_c the sentence's feature and r_c learned from 0.

    A name without images has no residual: it is its sentence.
    """

    residual_scale = 1.0

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.residuals = nn.Parameter(torch.empty(0, backbone.embed_dim))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._text = sentence_features(self.backbone, classes, template)

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Start every class at its sentence."""
        self.residuals.data = self.residuals.new_zeros(self._text.shape)
        self.remember()

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        if not self.seen:
            raise InputError(f"{self.name} has learned nothing yet: fit it on images first")
        own = torch.tensor(self.labels_of_classes(), device=self.residuals.device)
        residuals = self.residuals[own] * (own >= 0).unsqueeze(1)
        return (self._text.to(residuals) + self.residual_scale * residuals).unsqueeze(0)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        features = self._text.to(self.residuals) + self.residual_scale * self.residuals
        logits = class_logits(batch.images.global_, features, self.backbone.logit_scale)
        return cross_entropy_terms(logits, batch.labels)
