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

import torch
from jaxtyping import Float
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
