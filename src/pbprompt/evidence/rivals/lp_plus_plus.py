"""LP++: a linear probe whose weights blend image and text (Huang et al., CVPR 2024).

    logit_k(x) = f·(w_k + α_k t_k) + b_k                               f = f(x)/‖f(x)‖

w, b are visual prototypes and biases, t the unit text features of the dataset's template, α `text_scale`.

The probe is trained at once, full batch, by block coordinate majorise-minimise with step sizes and a start
that follow from the data: see `core.blended_probe`, which also says where the published program differs from
the paper. Nothing is searched, and no validation image is used. A name without images has its sentence times
the mean multiplier, and the mean of the others' visual part.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.rivals.blended_probe import fit_blend
from pbprompt.evidence.rivals.linear import LinearClassifier
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.registry import register


@dataclass(frozen=True, kw_only=True)
class LPPlusPlusConfig(MethodConfig):
    """The published recipe: 300 full-batch iterations."""

    iterations: int = setting(300, "full-batch iterations", least=0)


@register("lp++")
class LPPlusPlus(LinearClassifier):
    """Visual prototypes, and text with a multiplier per class."""

    Config = LPPlusPlusConfig
    paper = "Huang et al., CVPR 2024"
    config: LPPlusPlusConfig

    def solve(
        self, x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], text: Float[Tensor, "k d"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        return fit_blend(x, labels, text, self.config.iterations)
