"""CLIP-Adapter: a bottleneck behind the image tower, mixed with what the tower says (Gao et al., IJCV 2024).

    p(y = c | x) = softmax_c( s·cos(x', t_c) )
    x' = α·relu(W₂ relu(W₁ f(x))) + (1 − α)·f(x)             W₁ [d/4, d], W₂ [d, d/4], no bias

t_c is the sentence's text feature, f(x) is not normalised. This is the visual adapter, the paper's default.
α is the 0.2 of the authors' code; the paper searches it for each dataset and reports the best, which is not
done here. The learning rate 1e-5 is the paper's, which names no optimiser: SGD leaves the adapter where it
starts at that rate, so that it is Adam here, what the authors' training code takes where nothing is set. A
name that comes later has its sentence, and the images have the adapter as it was learned on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.trained import Trained
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.registry import register
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, kw_only=True)
class CLIPAdapterConfig(MethodConfig):
    """The published recipe: 1e-5, and CoOp's batches of 32 and 50 to 200 epochs by shots."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd (momentum 0.9), adam or adamw")
    learning_rate: float = setting(1e-5, "highest learning rate; cosine to zero over the epochs")
    alpha: float = setting(0.2, "α, share of what the adapter says", least=0, most=1)
    reduction: int = setting(4, "how many times narrower the bottleneck is", least=1)


@register("clip-adapter")
class CLIPAdapter(Trained):
    """Sentences for the classes, and an adapter for the images."""

    Config = CLIPAdapterConfig
    paper = "Gao et al., IJCV 2024"
    promptless = "changes what images say, not prompts,"
    takes_weights = True
    config: CLIPAdapterConfig

    def __init__(self, config: CLIPAdapterConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        width, narrow = backbone.embed_dim, max(1, backbone.embed_dim // config.reduction)
        self.adapter = nn.Sequential(
            nn.Linear(width, narrow, bias=False), nn.ReLU(), nn.Linear(narrow, width, bias=False), nn.ReLU()
        )

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._text = sentence_features(self.backbone, classes, template)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._text.unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        x = images.global_.to(self.adapter.get_parameter("0.weight"))
        adapted = self.config.alpha * self.adapter(x) + (1 - self.config.alpha) * x
        return super().sample_logits(Encoded(adapted, images.patches), features)
