"""KgCoOp: CoOp whose class features stay near those of the sentence (Yao et al., CVPR 2023).

    loss = −log softmax_y( s·cos(f(x), g_c(v)) ) + λ·(1 − (1/C) Σ_c cos(g_c(v), g_c⁰))

g(v) are the class features of CoOp's `context`, g⁰ those of the dataset's own sentence, `_sentence`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pbprompt.learners.method import Batch, setting
from pbprompt.learners.trained import Terms, cross_entropy_terms
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.prompts.rivals.coop import CoOp, CoOpConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import unit


@dataclass(frozen=True, kw_only=True)
class KgCoOpConfig(CoOpConfig):
    """The published recipe: CoOp's SGD from "a photo of a", batches of 128, 100 epochs, λ = 8."""

    words: str = setting("a photo of a", "words that the context starts from; empty: random, N(0, 0.02²)")
    batch_size: int = setting(128, "images per step")
    epochs: int = setting(100, "passes over the training images")
    weight: float = setting(8.0, "λ, how firmly class features are held at those of the sentence", least=0)


@register("kgcoop")
class KgCoOp(CoOp):
    """CoOp's context, held near the sentence."""

    Config = KgCoOpConfig
    presets = {"published": {}}
    variants = {}
    paper = "Yao et al., CVPR 2023"
    config: KgCoOpConfig

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._sentence = sentence_features(self.backbone, classes, template)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        features = self.class_features(1, generator)
        terms = cross_entropy_terms(self.sample_logits(batch.images, features)[0], batch.labels)
        apart = 1 - F.cosine_similarity(unit(features[0]), unit(self._sentence), dim=-1).mean()
        return {**terms, "total": terms["total"] + self.config.weight * apart, "apart": apart}
