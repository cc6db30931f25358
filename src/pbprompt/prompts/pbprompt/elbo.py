"""The training loss, as its named terms (Eq. 9).

    L = −E_{r_c ~ q(r_c | c)} log p(y | x, t_c) + β·KL[q(r_c | c) ‖ p(r_c)] + η·L_CT(P, Q)

| symbol            | name here          | meaning                                            |
|-------------------|--------------------|----------------------------------------------------|
| log p(y | x, t_c) | `log_likelihood`   | Eq. 1 at the true label, [*s, b]                   |
| KL                | `kl`               | one number, already reduced                        |
| L_CT              | `transport`        | Eq. 6 to 8, or entropic transport, [*s, b]         |
| β                 | `kl_weight`        | 1 for the exact ELBO                               |
| η                 | `transport_weight` | 0.01 in the paper                                  |

The paper prints −KL inside this minimised loss, yet says that it draws the posterior to the prior,
which takes a plus sign: that is what an evidence lower bound has once negated, and what is done here.

Left out, a term is zero: without `kl` and `transport` this is the loss of Eq. 2.
"""

import math
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.similarity import at_least_float32

LikelihoodReading = Literal["mean_of_logs", "log_of_mean"]


class Elbo(NamedTuple):
    """The loss and its terms before weighting: total = nll + β·kl + η·transport."""

    total: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    transport: Float[Tensor, ""]


def negative_log_likelihood(
    log_likelihood: Float[Tensor, "*s b"], reading: LikelihoodReading = "mean_of_logs"
) -> Float[Tensor, ""]:
    """Mean over the images, and over the samples either of the logs (ELBO) or inside the log.

    The log of the mean is never the larger loss (Jensen); with one sample the two are the same.
    """
    log_p = at_least_float32(log_likelihood)
    samples = log_p.reshape(-1, log_p.shape[-1])
    if reading == "mean_of_logs" or (reading == "log_of_mean" and len(samples) == 1):
        return -log_p.mean()
    if reading == "log_of_mean":
        return math.log(samples.shape[0]) - samples.logsumexp(0).mean()
    raise InputError(f"likelihood reading: {reading!r} is unknown; use 'mean_of_logs' or 'log_of_mean'")


def combined_elbo(
    log_likelihood: Float[Tensor, "*s b"],
    kl: Float[Tensor, ""] | None = None,
    transport: Float[Tensor, "*s b"] | None = None,
    kl_weight: float = 1.0,
    transport_weight: float = 0.01,
    reading: LikelihoodReading = "mean_of_logs",
) -> Elbo:
    """Eq. 9 averaged over samples and images; minimise `total`, log the rest."""
    nll = negative_log_likelihood(log_likelihood, reading)
    zero = nll.new_zeros(())
    kl_term = zero if kl is None else at_least_float32(kl)
    transport_term = zero if transport is None else at_least_float32(transport).mean()
    total = nll + kl_weight * kl_term + transport_weight * transport_term
    return Elbo(total, nll, kl_term, transport_term)
