"""Several prompts per class, matched to image patches by optimal transport: PLOT, and CoPLOT (ICLR 2023).

    T_c = argmin_T Σ_mn T_mn·(1 − cos(u_m, g_nc)) − ε·H(T),  rows sum to 1/M, columns to 1/N
    z_c = s·Σ_mn T_c,mn·cos(u_m, g_nc)  [+ s·cos(f(x), mean_n g_nc)]          in brackets: `add_global`
    loss = −log softmax_y(z)

u_m are the M patch features of an image, g_nc the features of a class's N prompts, whose context sets
v_n1 … v_nb are `context`, [n, b, w]; the plan T_c is a constant to autograd. Sinkhorn stops once no row
misses 1/M by more than a share `tolerance`, looked at every tenth iteration, so that a GPU need not wait at
each. The published rule (row scalings changed by less than 1e-2 in the mean) depends on the size of the cost;
where the cosines differ by some tenths, as a backbone's do, ten iterations are enough for either.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.prompts.pbprompt.transport import HIGHEST_COST, patch_cosines, sinkhorn
from pbprompt.prompts.rivals.cocoop import MetaNet, own_prompt_logits
from pbprompt.prompts.rivals.coop import NameInContext
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit_products
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.prompts import start_context

CELLS_AT_ONCE = 1 << 24  # images × classes × patches × prompts of the plans that are made at once
STARTS = "phrases that the sets start from, with commas between; a set without one: random, N(0, 0.02²)"


@dataclass(frozen=True, kw_only=True)
class PLOTConfig(MethodConfig):
    """CoOp's recipe, as later papers ran it with ViT-B/16; PLOT's own is the preset `published`."""

    prompts: int = setting(4, "N, context sets")
    tokens: int = setting(4, "b, vectors of a context set")
    words: str = setting("", STARTS)
    epsilon: float = setting(0.1, "ε, weight of the plan's entropy")
    iterations: int = setting(100, "most Sinkhorn iterations")
    tolerance: float = setting(1e-3, "share of its mass that a patch may miss when Sinkhorn stops early")
    add_global: bool = setting(False, "add the logit of the global image feature, as published for ImageNet")


@register("plot")
class PLOT(NameInContext):
    """A few learned contexts that share an image's patches among them (Chen et al., ICLR 2023).

    g_nc = text tower([SOS] v_n1 … v_nb name_c [.] [EOT])    n = 1 … N context sets
    """

    Config: ClassVar[type[MethodConfig]] = PLOTConfig
    presets = {
        "imagenet": {"epochs": 50, "add_global": True},
        "published": {"tokens": 16, "batch_size": 128, "epochs": 50},  # its configuration on RN50
    }
    tags = ("uses patches",)
    takes_weights = True
    exportable = False  # it iterates until an image's transport has converged
    paper = "Chen et al., ICLR 2023"
    config: PLOTConfig

    def __init__(self, config: PLOTConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        sets = config.prompts
        phrases = [one.strip() for one in config.words.split(",")] if config.words else []
        alike = len(set(phrases)) < len(phrases)  # sets that start alike stay alike
        if sets < max(1, len(phrases)) or alike:
            raise InputError(
                f"setting 'words' has the phrases {phrases} for {sets} context sets: "
                "give each set at most one, all different"
            )
        phrases += [""] * (sets - len(phrases))
        starts = [start_context(backbone, config.tokens, phrase) for phrase in phrases]
        self.context = nn.Parameter(torch.stack(starts))

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "n 1 b w"]:
        """The N prompts of every class: together they are one classifier."""
        return self.context.unsqueeze(1)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "n c d"]) -> Float[Tensor, "1 b c"]:
        if self.image_conditioned:
            return super().sample_logits(images, features)
        scale = self.backbone.logit_scale
        cells = features.shape[0] * features.shape[1] * images.patches.shape[1]
        parts = [
            transported_cosines(patch_cosines(patches, features).permute(1, 3, 2, 0), self.config)
            for patches in images.patches.split(max(1, CELLS_AT_ONCE // cells))
        ]
        logits = scale * torch.cat(parts)
        if self.config.add_global:
            logits = logits + class_logits(images.global_, features.mean(0), scale)
        return logits.unsqueeze(0)


@dataclass(frozen=True, kw_only=True)
class CoPLOTConfig(PLOTConfig):
    """The published recipe: as CoCoOp's."""

    batch_size: int = setting(1, "images per step")
    epochs: int = setting(10, "passes over the training images")
    words: str = setting("a photo of a, a picture of a, an image of a, a view of the", STARTS)


@register("coplot")
class CoPLOT(PLOT):
    """PLOT whose context sets CoCoOp's meta-net π shifts for the image (Chen et al., ICLR 2023).

    g_nc(x) = text tower([SOS] v_n1 + π(x) … v_nb + π(x) name_c [.] [EOT])    one shift for all vectors

    The sets start from phrases that differ: sets that start from the same words would stay the same for ever.
    """

    Config = CoPLOTConfig
    presets = {"imagenet": {"add_global": True}}
    image_conditioned = True
    config: CoPLOTConfig

    def __init__(self, config: CoPLOTConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.meta_net = MetaNet(backbone)

    def own_logits(self, images: Encoded, features: Float[Tensor, "n c d"]) -> Float[Tensor, "1 b c"]:
        context = self.context + self.meta_net(images.global_)[:, None, None]
        prompts, scale = self._engine(context.unsqueeze(2)), self.backbone.logit_scale
        similarity = unit_products("bmd,bncd->bcmn", images.patches, prompts)
        logits = scale * transported_cosines(similarity, self.config)
        if self.config.add_global:
            logits = logits + own_prompt_logits(images.global_, prompts.mean(1), scale)
        return logits.unsqueeze(0)


def transported_cosines(similarity: Float[Tensor, "b c m n"], config: PLOTConfig) -> Float[Tensor, "b c"]:
    """Σ_mn T_mn·cos_mn of every image and class under its plan T."""
    *outer, patches, prompts = similarity.shape
    rows = similarity.new_full((*outer, patches), 1 / patches)
    columns = similarity.new_full((*outer, prompts), 1 / prompts)
    stop = config.iterations, config.tolerance / patches
    plan = sinkhorn(1 - similarity.detach(), rows, columns, config.epsilon, *stop, highest_cost=HIGHEST_COST)
    return (plan * similarity).sum((-2, -1))
