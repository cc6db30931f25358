"""PromptSRC: tokens in both towers, held near the frozen towers in three ways (Khattak et al., ICCV 2023).

    loss = −log p(y|x) + λ_t·mean|g − g⁰| + λ_i·mean|f − f⁰| + (1/C)·KL[p⁰(·|x) ‖ p(·|x)]
    θ = Σ_e w_e θ_e,   w_e ∝ exp(−(e − μ)²/2σ²)          over the epochs e = 1, 2, …: what is kept in the end

f and g are both towers with the tokens (`ivlp`), of length 1; f⁰ and g⁰ the frozen ones, g⁰ the mean over
several sentences; p and p⁰ the softmax of s·f·g and of s·f⁰·g⁰ over the C classes.

The authors' sentences are CLIP's for ImageNet; here they are the seven that CLIP's authors found enough. They
train on random crops: `--views` gives some.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, cross_entropy_terms
from pbprompt.learners.zeroshot import CLIP_SEVEN, sentence_features
from pbprompt.prompts.rivals.towers.ivlp import IVLP, IVLPConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class PromptSRCConfig(IVLPConfig):
    """The published recipe for base-to-new: SGD at 0.0025, 20 epochs, 4 tokens in nine of 12 blocks."""

    learning_rate: float = setting(0.0025, "highest learning rate; cosine to zero over the epochs")
    epochs: int = setting(20, "passes over the training images")
    tokens: int = setting(4, "b, context vectors")
    image_tokens: int = setting(4, "k, tokens behind an image's patches")
    depth: int = setting(0, "J, blocks with tokens, from the first; 0: three quarters of them", least=0)
    text_weight: float = setting(25.0, "λ_t, how firmly class features are held", least=0)
    image_weight: float = setting(10.0, "λ_i, how firmly image features are held", least=0)
    average_at: float = setting(15.0, "μ, the epoch that counts most in what is kept")
    average_within: float = setting(1.0, "σ, how many epochs around it count", least=1e-3)


@register("promptsrc")
class PromptSRC(IVLP):
    """Tokens in both towers that forget little."""

    Config: ClassVar[type[MethodConfig]] = PromptSRCConfig
    presets = {
        "published": {"depth": 9},
        # from ImageNet to other datasets
        "transfer": {"depth": 3, "average_at": 6.0, "average_within": 10.0},
        "few-shot": {"depth": 9, "epochs": 50, "average_at": 30.0, "average_within": 30.0},
        "few-shot-fine": {"depth": 9, "epochs": 50, "average_at": 45.0, "average_within": 5.0},
    }
    paper = "Khattak et al., ICCV 2023"
    whole = 0.75
    config: PromptSRCConfig
    average: Tensor

    def __init__(self, config: PromptSRCConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.register_buffer("average", torch.zeros(sum(one.numel() for one in self.parameters())))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        several = [sentence_features(self.given, classes, sentence) for sentence in CLIP_SEVEN]
        self._diverse = torch.stack(several).mean(0)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        assert batch.frozen is not None
        config, scale, images = self.config, self.backbone.logit_scale, batch.images.global_
        features = self.class_features(1, generator)[0]
        logits = class_logits(images, features, scale)
        frozen = class_logits(batch.frozen, self._diverse, scale).log_softmax(-1)
        kl = (frozen.exp() * (frozen - logits.log_softmax(-1))).mean()
        text = (unit(features) - unit(self._diverse)).abs().mean()
        image = (unit(images) - unit(batch.frozen)).abs().mean()
        terms = cross_entropy_terms(logits, batch.labels)
        total = terms["total"] + config.text_weight * text + config.image_weight * image + kl
        return {**terms, "total": total, "text": text, "image": image, "kl": kl}

    @torch.no_grad()
    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Add this epoch's values to the mean, which takes their place after the last one."""
        at, within = self.config.average_at, self.config.average_within
        powers = [-0.5 * ((each + 1 - at) / within) ** 2 for each in range(epochs)]
        weights = [math.exp(power - max(powers)) for power in powers]
        now = torch.cat([one.flatten() for one in self.parameters()])
        self.average += weights[epoch] / sum(weights) * now
        if epoch + 1 == epochs:
            torch.nn.utils.vector_to_parameters(self.average.clone(), self.parameters())
            self.average.zero_()
