"""A context and a shift of it by each image, one for all vectors of a prompt (CoCoOp; SHIP and CoPLOT too).

g_c = text tower([SOS] v_1 + r … v_b + r name_c [.] [EOT])    v_1 … v_b are `context`, [b, w]
"""

from dataclasses import dataclass
from itertools import chain, pairwise

from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.method import setting
from pbprompt.prompts.rivals.coop import ContextConfig, NameInContext
from pbprompt.registry import register
from pbprompt.vision import similarity
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import start_context


@dataclass(frozen=True, kw_only=True)
class CoCoOpConfig(ContextConfig):
    """The published recipe: SGD at 0.002, one image per step, 10 epochs, started at words."""

    batch_size: int = setting(1, "images per step")
    epochs: int = setting(10, "passes over the training images")


def network(*widths: int, activation: nn.Module | None = None) -> nn.Sequential:
    """Linear layers from width to width with an activation between them, ReLU unless given."""
    pairs = ((nn.Linear(*both), activation or nn.ReLU()) for both in pairwise(widths))
    return nn.Sequential(*list(chain.from_iterable(pairs))[:-1])


class MetaNet(nn.Sequential):
    """π(x): d → d/16 → w, of image features in any precision; it keeps its own."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(*network(backbone.embed_dim, max(1, backbone.embed_dim // 16), backbone.text_width))

    def forward(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "b w"]:
        x = similarity.unit(images).to(next(self.parameters()).dtype)
        return super().forward(x)  # type: ignore[no-untyped-call]


def own_prompt_logits(
    images: Float[Tensor, "b d"], prompts: Float[Tensor, "*s b c d"], scale: similarity.Scale
) -> Float[Tensor, "*s b c"]:
    """scale · cos(f(x), g_c(x)): each image against its own prompts."""
    return scale * similarity.unit_products("bd,...bcd->...bc", images, prompts)


class ShiftedContext(NameInContext):
    """A context that each image shifts, once it has a meta-net; until then it is the same for all."""

    config: ContextConfig

    def __init__(self, config: ContextConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.context = nn.Parameter(start_context(backbone, config.tokens, config.words))
        self.meta_net: MetaNet | None = None

    def let_images_shift(self) -> None:
        self.image_conditioned, self.exportable = True, False
        self.meta_net = MetaNet(self.backbone)

    def logits(self, x: Float[Tensor, "b d"], engine: TextEngine) -> Float[Tensor, "b c"]:
        """s·cos(x, g_c), with prompts of each feature's own where it shifts them."""
        scale = self.backbone.logit_scale
        if self.meta_net is None:
            return similarity.class_logits(x, engine(self.context[None, None]), scale).squeeze(0)
        context = self.context + self.meta_net(x).unsqueeze(1)
        return own_prompt_logits(x, engine(context.unsqueeze(1)), scale)

    def own_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "1 b c"]:
        return self.logits(images.global_, self._engine).unsqueeze(0)


@register("cocoop")
class CoCoOp(ShiftedContext):
    """A learned context plus a small network that shifts it for each image (Zhou et al., CVPR 2022).

    r = π(x) = W₂·relu(W₁·f(x)/‖f(x)‖ + a₁) + a₂     the meta-net: d → d/16 → w
    loss = −log softmax_y( s·cos(f(x), g_c(x)) )
    """

    Config = CoCoOpConfig
    paper = "Zhou et al., CVPR 2022"
    capturable = True
    takes_weights = True
    image_conditioned, exportable = True, False

    def __init__(self, config: CoCoOpConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.let_images_shift()
