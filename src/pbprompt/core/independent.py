"""How likely is each name, whatever the others are? A model trained with a sigmoid loss can say.

    p(c | x) = sigmoid( s·cos(f(x), g_c) + b )

s is the backbone's scale and b its logit bias. The probabilities of an image do not sum to 1: it may show
several of the things named, or none. Its entropy is the sum over the names, each a question of yes or no.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.core.likelihood import Uncertainty, at_least_float32


def independent(logits: Float[Tensor, "1 b c"], bias: float) -> Uncertainty:
    """What one set of names says of every image; without samples nothing can disagree."""
    p = (at_least_float32(logits[0]) + bias).sigmoid()
    entropy = (torch.special.entr(p) + torch.special.entr(1 - p)).sum(-1)
    return Uncertainty(p, entropy, entropy, torch.zeros_like(entropy), torch.zeros_like(p))
