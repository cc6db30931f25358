"""CoCoOp: a context that each image shifts (Zhou et al., CVPR 2022).

    π(x) = W₂·relu(W₁·f(x)/‖f(x)‖ + a₁) + a₂    the meta-net: d → d/16 → w
    g_c(x) = text tower([SOS] v_1 + π(x) … v_b + π(x) name_c [.] [EOT])
    loss = −log softmax_y( s·cos(f(x), g_c(x)) )

| symbol    | name here  | meaning                                |
|-----------|------------|----------------------------------------|
| v_1 … v_b | `context`  | learned vectors, [b, w]                |
| π         | `meta_net` | one shift for all vectors of a prompt  |
| f, g, s   | backbone   | the frozen towers and exp(logit scale) |

Every image has its own prompts: images × classes go through the text tower, as many at once as fit.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core.likelihood import Scale, unit
from pbprompt.methods.base import Batch, MethodConfig, Terms, cross_entropy_terms, setting
from pbprompt.methods.coop import NameInContext, start_context
from pbprompt.registry import register

REDUCTION = 16
PROMPTS_AT_ONCE = 1 << 12  # images × classes in the text tower at once, where no gradient is kept


@dataclass(frozen=True, kw_only=True)
class CoCoOpConfig(MethodConfig):
    """The published recipe: SGD at 0.002, one image per step, 10 epochs, started at words."""

    batch_size: int = setting(1, "images per step")
    epochs: int = setting(10, "passes over the training images")
    tokens: int = setting(4, "b, context vectors")
    words: str = setting("a photo of a", "words that the context starts from; empty: random, N(0, 0.02²)")


def make_meta_net(joint: int, width: int) -> nn.Sequential:
    """π: Linear(d, d/16), ReLU, Linear(d/16, w)."""
    hidden = max(1, joint // REDUCTION)
    return nn.Sequential(nn.Linear(joint, hidden), nn.ReLU(), nn.Linear(hidden, width))


def shift(meta_net: nn.Sequential, images: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
    """π(x) of image features in any precision; the meta-net keeps its own."""
    return meta_net(unit(images).to(next(meta_net.parameters()).dtype))


def own_prompt_logits(
    images: Float[Tensor, "b d"], prompts: Float[Tensor, "b c d"], scale: Scale
) -> Float[Tensor, "b c"]:
    """scale · cos(f(x), g_c(x)): each image against its own prompts."""
    with torch.autocast(images.device.type, enabled=False):
        x, g = unit(images), unit(prompts)
        dtype = torch.promote_types(x.dtype, g.dtype)
        return scale * torch.einsum("bd,bcd->bc", x.to(dtype), g.to(dtype))


@register("cocoop")
class CoCoOp(NameInContext):
    """A learned context plus a small network that shifts it for each image."""

    Config = CoCoOpConfig
    image_conditioned = True
    exportable = False
    paper = "Zhou et al., CVPR 2022"
    capturable = True
    takes_weights = True
    config: CoCoOpConfig

    def __init__(self, config: CoCoOpConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.context = nn.Parameter(start_context(backbone, config.tokens, config.words))
        self.meta_net = make_meta_net(backbone.embed_dim, backbone.text_width)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        return cross_entropy_terms(self._logits(batch.images.global_), batch.labels)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """One bank without content: the prompts wait for the images."""
        return self.context.new_empty(1, len(self.classes), 0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        at_once = max(1, PROMPTS_AT_ONCE // len(self.classes))
        parts = [self._logits(some) for some in images.global_.split(at_once)]
        return torch.cat(parts).unsqueeze(0)

    def _logits(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "b c"]:
        context = self.context + shift(self.meta_net, images).unsqueeze(1)
        return own_prompt_logits(images, self._engine(context.unsqueeze(1)), self.backbone.logit_scale)
