"""How alike are the prompts sampled for one class?

    D_c = 2 / (S·(S − 1)) · Σ_{s<t} cos(g_c^(s), g_c^(t))

1 is mode collapse: every draw says the same. The lower D_c, the more the draws differ.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.core.likelihood import unit


def sampled_cosine(prompts: Float[Tensor, "s c d"]) -> Float[Tensor, " c"]:
    """D_c of every class: the mean cosine over the pairs of its S draws. One draw has no pair: NaN."""
    drawn = unit(prompts)
    pairs = torch.einsum("scd,tcd->cst", drawn, drawn)
    first, second = torch.triu_indices(len(drawn), len(drawn), 1, device=drawn.device)
    return pairs[:, first, second].mean(-1)
