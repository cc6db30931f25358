"""Kernel regression towards labels that starts from another predictor (Bendou et al., CVPR 2025).

    f(x) = f₀(x) + k(x, S)·A,       A = (k(S, S)/λ + I)⁻¹ (Y − f₀(S)),       k(x, x') = exp(−β·(1 − x·x'))

| symbol | name here    | meaning                                             |
|--------|--------------|-----------------------------------------------------|
| S, Y   |              | the n training features, unit, and one-hot labels   |
| f₀     |              | the predictor to stay near, here zero-shot's cosines |
| λ, β   | `ridge`      | how far to stay from f₀, and the kernel's sharpness |
| A      |              | coefficients, [n, c]                                |

Kernel ridge regression has (k(S, S) + λI)⁻¹ = A/λ; the published program adds k(x, S)·A itself, and its λ was
searched for so. λ is therefore the weight of the images too: f goes to f₀ as λ goes to 0.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def rbf_kernel(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sharpness: float) -> Float[Tensor, "n m"]:
    """exp(−β·(1 − cos)) of unit features."""
    return (-sharpness * (1 - x @ y.T)).exp()


def proximal_coefficients(
    kernel: Float[Tensor, "n n"], residuals: Float[Tensor, "n c"], ridge: float
) -> Float[Tensor, "n c"]:
    """A, with `residuals` Y − f₀(S)."""
    system = kernel / ridge
    system.diagonal().add_(1)
    return torch.cholesky_solve(residuals, torch.linalg.cholesky(system))


def left_out_accuracy(
    kernel: Float[Tensor, "n n"],
    start: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    judged: Bool[Tensor, " n"],
    ridges: Sequence[float],
) -> list[float]:
    """For each λ the share of the judged images that is right when left out, with `start` f₀(S).

    Without image i its correction is λ·(R_i − (C R)_i / C_ii), C = (k(S, S) + λI)⁻¹, R = Y − f₀(S).
    """
    residuals = F.one_hot(labels, start.shape[1]).to(start) - start
    values, vectors = torch.linalg.eigh(kernel)
    turned = vectors.T @ residuals
    shares = []
    for ridge in ridges:
        inverse = 1 / (values + ridge)
        own = vectors.square() @ inverse  # C_ii
        solved = vectors @ (inverse.unsqueeze(1) * turned)
        said = start + ridge * (residuals - solved / own.unsqueeze(1))
        shares.append((said.argmax(1) == labels)[judged].double().mean().item())
    return shares
