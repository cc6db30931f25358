"""VPT-deep: learned tokens behind an image's patches, in every block (Jia et al., ECCV 2022).

    image block l:  [class] patches V_l                    V_l, l < J, in the place of V_{l−1}
    loss = −log softmax_y( s·cos(f(x), g_c) )              g_c the sentence's text feature, which stays

The settings for CLIP are those that MaPLe's authors compare with: 8 tokens in each block; they train on
random crops: `--views` gives some.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.taps import Taps, Tokens, blocks_of
from pbprompt.core.likelihood import class_logits
from pbprompt.methods.base import Batch, Method, MethodConfig, Terms, cross_entropy_terms, setting
from pbprompt.methods.zeroshot import sentence_features
from pbprompt.registry import register


@dataclass(frozen=True, kw_only=True)
class VPTDeepConfig(MethodConfig):
    """The published recipe: SGD at 0.0025, batches of 4, 5 epochs, 8 tokens in every block."""

    learning_rate: float = setting(0.0025, "highest learning rate; cosine to zero over the epochs")
    batch_size: int = setting(4, "images per step")
    epochs: int = setting(5, "passes over the training images")
    tokens: int = setting(8, "tokens behind an image's patches", least=1)
    depth: int = setting(0, "J, blocks with tokens of their own, from the first; 0: all", least=0)


@register("vpt-deep")
class VPTDeep(Method):
    """Tokens inside the image tower; the text stays."""

    Config = VPTDeepConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": {"depth": 12}}
    paper = "Jia et al., ECCV 2022"
    takes_weights = True
    tunes_towers = True
    config: VPTDeepConfig

    def __init__(self, config: VPTDeepConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        blocks, width = blocks_of(backbone, "image")
        self.tap(Taps({block: Tokens(config.tokens, width) for block in range(config.depth or blocks)}))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._text = sentence_features(self.given, classes, template)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._text.unsqueeze(0)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        logits = class_logits(batch.images.global_, self._text, self.backbone.logit_scale)
        return cross_entropy_terms(logits, batch.labels)
