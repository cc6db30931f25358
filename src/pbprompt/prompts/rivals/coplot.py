"""CoPLOT: PLOT's context sets, each shifted for the image by CoCoOp's meta-net (Chen et al., ICLR 2023).

    g_nc(x) = text tower([SOS] v_n1 + π(x) … v_nb + π(x) name_c [.] [EOT])    n = 1 … N context sets
    z_c = s·Σ_mn T_c,mn·cos(u_m, g_nc(x)),   T_c: PLOT's plan between the patches u_m and g_1c(x) … g_Nc(x)
    loss = −log softmax_y(z)

v_n1 … v_nb are `context`, [n, b, w]; π is `meta_net`, one shift for all vectors of all sets.

The sets start from phrases that differ: sets that start from the same words would stay the same for ever.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.learners.method import setting
from pbprompt.prompts.rivals.cocoop import in_parts, make_meta_net, own_prompt_logits, shift
from pbprompt.prompts.rivals.plot import PLOT, PLOTConfig, transported_cosines
from pbprompt.registry import register
from pbprompt.vision.similarity import unit_products
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, kw_only=True)
class CoPLOTConfig(PLOTConfig):
    """The published recipe: as CoCoOp's."""

    batch_size: int = setting(1, "images per step")
    epochs: int = setting(10, "passes over the training images")
    words: str = setting(
        "a photo of a, a picture of a, an image of a, a view of the",
        "phrases that the sets start from, with commas between; a set without one: random, N(0, 0.02²)",
    )


@register("coplot")
class CoPLOT(PLOT):
    """A few learned contexts that the image shifts, and whose prompts share its patches among them."""

    Config = CoPLOTConfig
    presets = {"imagenet": {"add_global": True}}
    image_conditioned = True
    config: CoPLOTConfig

    def __init__(self, config: CoPLOTConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.meta_net = make_meta_net(backbone.embed_dim, backbone.text_width)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """One bank without content: the prompts wait for the images."""
        return self.context.new_empty(1, len(self.classes), 0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "1 b c"]:
        prompts = len(self.context) * len(self.classes)
        return in_parts(self._logits, images, prompts).unsqueeze(0)

    def _logits(self, images: Encoded) -> Float[Tensor, "b c"]:
        shifts = shift(self.meta_net, images.global_)
        context = self.context + shifts[:, None, None]
        prompts = self._engine(context.unsqueeze(2))
        scale = self.backbone.logit_scale
        similarity = unit_products("bmd,bncd->bcmn", images.patches, prompts)
        logits = scale * transported_cosines(similarity, self.config)
        if self.config.add_global:
            logits = logits + own_prompt_logits(images.global_, prompts.mean(1), scale)
        return logits
