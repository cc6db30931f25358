"""LP++: a linear probe whose weights blend image and text (Huang et al., CVPR 2024).

    l_ik = f_i·(w_k + α_k t_k) + b_k               L = −(1/N) Σ_i log softmax(l_i)[y_i]       f = f(x)/‖f(x)‖
    w_k ← Σ_{i of k} f_i                             α_k ← 250·mean over classes of the mean f_i·t_{y_i}
    step of W, b:  4N / λ_max(FᵀF)                   step of α:  N / (4·max_k Σ_i (f_i·t_k)²)

w, b are visual prototypes and biases, t the unit text features of the dataset's template, α `text_scale`.

The probe is trained at once, full batch, by block coordinate majorise-minimise. The steps follow from bounds
on the loss's curvature, so nothing is searched, and no validation image is used. As published: 300
iterations, momentum 0.9 on W and b, a step of α in every tenth. The published program starts b at random and
adds up α's gradient over all iterations so far, and keeps the iterate that is best on validation images; here
b starts at 0, α follows the gradient where it is, as the paper has it, and the last iterate is kept. A name
without images has its sentence times the mean multiplier, and the mean of the others' visual part.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.rivals.gda import class_means
from pbprompt.evidence.rivals.linear import LinearClassifier
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.registry import register

MOMENTUM = 0.9
TEXT_EVERY = 10
START = 250.0


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


def step_sizes(x: Float[Tensor, "n d"], cosines: Float[Tensor, "n k"]) -> tuple[Tensor, Tensor]:
    """Of the probe (W, b) and of α."""
    largest = torch.linalg.matrix_norm(x, 2).square()
    return 4 * len(x) / largest, len(x) / (4 * cosines.square().sum(0).amax())


def fit_blend(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], text: Float[Tensor, "k d"], iterations: int
) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"], Float[Tensor, " k"]]:
    """W, b and α of logits = f Wᵀ + b + α·(f tᵀ); every one of the K classes has an image."""
    cosines, wanted = x @ text.T, F.one_hot(labels, len(text)).to(x)
    alpha = (START * class_means(cosines, labels).diagonal().mean()).expand(len(text)).clone()
    probe = torch.cat([wanted.T @ x, x.new_zeros(len(text), 1)], dim=1)
    inputs = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    probe_step, alpha_step = step_sizes(x, cosines)
    velocity = torch.zeros_like(probe)
    for iteration in range(1, iterations + 1):
        errors = ((inputs @ probe.T + alpha * cosines).softmax(1) - wanted) / len(x)
        velocity = MOMENTUM * velocity + errors.T @ inputs
        probe = probe - probe_step * velocity
        if iteration % TEXT_EVERY == 0:
            alpha = alpha - alpha_step * (errors * cosines).sum(0)
    return probe[:, :-1], probe[:, -1], alpha
