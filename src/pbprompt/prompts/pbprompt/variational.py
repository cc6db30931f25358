"""The distribution of a label's latent vector: posterior, contextual prior and their divergence.

    q(r_c | c) = N(μ(e_c), diag σ²(e_c))                                     (Eq. 11, text of Eq. 9)
    p(r_c)     = N(e_c, s² I), s = 1 in the paper                            (contextual prior)
    r_c        = μ + σ·ε,  ε ~ N(0, I)                                       (reparameterised)
    KL[q ‖ p]  = ½ Σ_j [ (σ_j² + (μ_j − e_j)²) / s² − 1 − log(σ_j² / s²) ]

| symbol | name here            | meaning                                                     |
|--------|----------------------|-------------------------------------------------------------|
| e_c    | `embedding`          | the name: its mean token embedding or its text feature, [c, w] |
| μ      | `mean`               | one linear layer of e_c, beside e_c with `mean_residual`    |
| log σ² | `log_variance`       | another linear layer of e_c                                 |
| ε      | `noise`              | drawn for every sample, class and dimension                 |
| s      | `prior_std`          | scale of the prior                                          |

Nothing here depends on the classes seen in training: a new name has a posterior as soon as it has an
embedding.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.seeding import stream
from pbprompt.vision.similarity import at_least_float32
from pbprompt.vision.towers import kernels as gpu

KLReduction = Literal["elbo", "mean", "sum"]
Labels = Float[Tensor, "c w"]
Draws = Float[Tensor, "s c w"]


class GaussianPosterior(nn.Module):
    """q(r_c | c): two linear heads on the label embedding, 2·(W² + W) parameters.

    Args:
        width: W, the width of the text tower.
        initial_std: every σ starts at this value whatever the label. Without it the log-variance head
            starts as any linear layer does, and σ is near 1 for embeddings as small as CLIP's.
        mean_residual: μ(e) = e + Linear(e) with the layer at zero, so that μ starts at the prior's mean.
    """

    def __init__(self, width: int, initial_std: float | None = None, *, mean_residual: bool = False) -> None:
        super().__init__()
        if initial_std is not None and initial_std <= 0:
            raise InputError(f"initial_std: {initial_std} should be above 0, or left out for the plain start")
        self.mean_residual = mean_residual
        self.mean, self.log_variance = nn.Linear(width, width), nn.Linear(width, width)
        if mean_residual:
            nn.init.zeros_(self.mean.weight)
            nn.init.zeros_(self.mean.bias)
        if initial_std is not None:
            nn.init.zeros_(self.log_variance.weight)
            nn.init.constant_(self.log_variance.bias, 2 * math.log(initial_std))

    def forward(self, embedding: Labels) -> tuple[Labels, Labels]:
        """Mean and log-variance of every label."""
        e = embedding.to(self.mean.weight.dtype)
        mean = self.mean(e) + e if self.mean_residual else self.mean(e)
        return mean, self.log_variance(e)


def draw_noise(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """ε ~ N(0, I) on the generator's device: a CPU generator gives the same noise to every device."""
    return torch.randn(shape, generator=generator, device=generator.device)


def noise_of_names(keys: Sequence[str], samples: int, width: int, generator: torch.Generator) -> Draws:
    """ε ~ N(0, I) for classes, a stream of its own for each name: other classes change nothing about it.

    `keys`: the names as they are compared (`data.names.name_key`). The generator gives one number, which is
    the seed of all streams: equal generators give equal noise, and a class keeps its own whatever is added,
    removed or put in another order. Of a name that comes twice the second has a stream of its own too.
    """
    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
    before: Counter[str] = Counter()
    rows = []
    for key in keys:
        rows.append(torch.randn(samples, width, generator=stream(seed, key, before[key])))
        before[key] += 1
    return torch.stack(rows, dim=1)


def reparameterise(mean: Labels, log_variance: Labels, noise: Draws) -> Draws:
    """r = μ + σ·ε, differentiable in μ and log σ²."""
    if gpu.takes(mean, log_variance):
        from pbprompt.vision.towers.kernels.elementwise import GaussianDraw

        return GaussianDraw.apply(mean, log_variance, noise.to(mean))  # type: ignore[no-untyped-call]
    return mean + (0.5 * log_variance).exp() * noise.to(mean)


def sample(
    mean: Labels, log_variance: Labels, samples: int, generator: torch.Generator, *, antithetic: bool = False
) -> Draws:
    """`samples` draws of r for every class: independent, or antithetic pairs of noise ε and −ε.

    Both are unbiased. In a pair what is odd in ε cancels, so its mean has a lower variance.
    """
    noise = draw_noise((-(-samples // 2) if antithetic else samples, *mean.shape), generator)
    if antithetic:
        noise = torch.cat([noise, -noise])[:samples]
    return reparameterise(mean, log_variance, noise)


def gaussian_kl(mean: Labels, log_variance: Labels, prior_mean: Labels, prior_std: float = 1.0) -> Labels:
    """KL[q ‖ p] of every class and dimension, in nats; `reduce_kl` makes one number of it."""
    if gpu.takes(mean, log_variance, prior_mean) and not prior_mean.requires_grad:
        from pbprompt.vision.towers.kernels.elementwise import Divergence

        return Divergence.apply(mean, log_variance, prior_mean, prior_std)  # type: ignore[no-untyped-call]
    mean, log_variance, prior_mean = map(at_least_float32, (mean, log_variance, prior_mean))
    log_ratio = log_variance - 2 * math.log(prior_std)
    # expm1(t) − t is the same as exp(t) − 1 − t, and does not cancel when q is close to p.
    return 0.5 * (log_ratio.expm1() - log_ratio + ((mean - prior_mean) / prior_std).square())


def reduce_kl(kl: Labels, reduction: KLReduction, examples: int = 1) -> Float[Tensor, ""]:
    """One number for the loss.

    `elbo`: the sum divided by the number of training examples, which is the exact share of one example
    in the ELBO of the data set. `mean`: over classes and dimensions. `sum`: as it is.
    """
    if reduction == "elbo":
        return kl.sum() / examples
    if reduction == "mean":
        return kl.mean()
    if reduction == "sum":
        return kl.sum()
    raise InputError(f"KL reduction: {reduction!r} is unknown; use 'elbo', 'mean' or 'sum'")
