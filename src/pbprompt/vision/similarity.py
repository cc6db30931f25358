"""How likely is a class, given an image and the prompts (Eq. 1)?

    p(y = c | x) = exp(sim(f(x), g_c) / τ) / Σ_c' exp(sim(f(x), g_c') / τ)

| symbol | name here  | meaning                                                  |
|--------|------------|----------------------------------------------------------|
| f(x)   | `features` | global image features, [b, d]                            |
| g_c    | `prompts`  | text features of the class prompts, [*s, c, d]           |
| sim    | `cosines`  | cosine similarity                                        |
| 1/τ    | `scale`    | the backbone's exp(logit_scale), 100 for OpenAI's models |
| S      | `s`        | posterior samples of every class prompt                  |

With S samples the prediction is the mean of the S class distributions. How far they disagree is
what the model does not know: see `learners/predictive.py`.

Half-precision features are welcome, but the arithmetic is done in float32 (float64 stays float64),
under autocast too, and never on tensor cores: a cosine rounded to bfloat16 can be a fifth of a logit off at
scale 100.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.vision.towers import kernels

Scale = float | Float[Tensor, ""]


def at_least_float32(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return x if x.dtype == torch.float64 else x.float()


def unit(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """x / ‖x‖ along the last dimension, float32 at least. A zero vector stays zero."""
    if kernels.takes(x):
        from pbprompt.vision.towers.kernels.elementwise import unit as on_gpu

        return on_gpu(x)
    return F.normalize(at_least_float32(x), dim=-1)


def unit_products(equation: str, x: Float[Tensor, "*n d"], y: Float[Tensor, "*m d"]) -> Float[Tensor, "..."]:
    """The einsum of x and y, both of length 1 along the last dimension: cosines, where it sums over that."""
    with torch.autocast(x.device.type, enabled=False), kernels.float32_products(tensor_cores=False):
        x, y = unit(x), unit(y)
        dtype = torch.promote_types(x.dtype, y.dtype)
        return torch.einsum(equation, x.to(dtype), y.to(dtype))


def cosines(x: Float[Tensor, "n d"], y: Float[Tensor, "*s c d"]) -> Float[Tensor, "*s n c"]:
    """Cosine similarity of every x with every y."""
    return unit_products("nd,...cd->...nc", x, y)


def class_logits(
    features: Float[Tensor, "b d"], prompts: Float[Tensor, "*s c d"], scale: Scale
) -> Float[Tensor, "*s b c"]:
    """The exponents of Eq. 1: scale · cos(f(x), g_c)."""
    return scale * cosines(features, prompts)


def log_likelihood(logits: Float[Tensor, "*s b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, "*s b"]:
    """log p(y | x) of the true labels, for every sample."""
    log_probabilities = at_least_float32(logits).log_softmax(-1)
    index = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    return log_probabilities.gather(-1, index).squeeze(-1)


def mean_probabilities(logits: Float[Tensor, "s b c"]) -> Float[Tensor, "b c"]:
    """log (1/S) Σ_s p_s(y = c | x): the mean is over probabilities, the result is its logarithm."""
    return at_least_float32(logits).log_softmax(-1).logsumexp(0) - math.log(logits.shape[0])


def mean_features(prompts: Float[Tensor, "s c d"]) -> Float[Tensor, "c d"]:
    """One text feature per class: the mean direction of its S samples, each of which counts alike."""
    return unit(unit(prompts).mean(0))


def pair_cosine(vectors: Float[Tensor, "s *c d"]) -> Float[Tensor, "*c"]:
    """How alike are S vectors? D = 2 / (S·(S − 1)) · Σ_{s<t} cos(x^(s), x^(t)); of one there is no pair: NaN.

    Of prompts drawn for a class 1 is mode collapse: every draw says the same.
    """
    own = unit(vectors)
    pairs = torch.einsum("s...d,t...d->...st", own, own)
    first, second = torch.triu_indices(len(own), len(own), 1, device=own.device)
    return pairs[..., first, second].mean(-1)
