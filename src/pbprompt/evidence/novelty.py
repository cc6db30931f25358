"""Images of none of the classes, and classes of which there is a name and no photograph.

How well known an image looks falls with distance and with nothing else:

    F(x) = Σ_e f_e((N_e(x) − N̄_e) / σ_e),   f(z) = z,  or min(0, 1 + z) where only distance tells

| symbol  | name here   | meaning                                                                        |
|---------|-------------|--------------------------------------------------------------------------------|
| N_e     | `closeness` | how near the nearest class is, to the experts that can tell: max_c R_c of kernel |
|         |             | regression, and −min_c D_c of the Gaussians, of which only distance tells       |
| N̄, σ    | `reference` | their means and deviations over held-out photographs                           |

The familiarity of an image is the rank of F(x) among those of left-out photographs: a p-value.

A name without photographs takes an image from the known classes at the odds

    ln o_n(x) = −u − v F(x) + ψ (x − b)·(t̂_n − t̄) + ρ (s_n(x) − ln Σ_c exp s_c(x))      u, v, ψ, ρ > 0

so that it takes what looks like nothing known, fits the name, and fits it better than the names of the known
classes, s being what names alone say (ψ₀ E of names, `weights.py`). ρ = 1 and nothing else is zero-shot's own
odds; where names are weak, ψ₀ is small and so is this. All four are fitted by leaving classes out whole,
photographs and all: their photographs are to go to their name, and all others to none of the other names.
What a new name may cost is bounded by the same left-out photographs, whatever the name is: u_n is raised
until it takes at most 1 % of images like them, and up to 20 new names together at most 3 %: by counting, or
by Student's t where they are too few to count so small a share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.evidence.expert import HeldOutPhotographs
from pbprompt.evidence.weights import fit_weights

FEWEST = 19  # left-out photographs, before a p-value can be 0.05
BY_ONE, BY_TWENTY = 0.01, 0.03  # of the known classes' images that new names may take
USUAL = (2.0, 1.0, 0.3, 1.0)  # u, v, ψ / exp(logit scale) and ρ before any class is left out
PAIRS = 1 << 18  # of photographs and names, that these are fitted to
HUGE = 1e30  # finite, as all that is saved
GATE = (0.1, 0.01)  # familiarity at which an image begins to be left to the names, and at which it is


class Novelty(NamedTuple):
    """What it takes to tell the unknown."""

    reference: Float[Tensor, "m 2"]
    """N̄, σ"""
    familiar: Float[Tensor, " m"]
    """F of left-out photographs, ascending; empty where nothing could be left out"""
    odds: Float[Tensor, "4"]
    """u, v, ψ, ρ"""
    found: Float[Tensor, " _"]
    """of classes left out whole, the share of images that their name is given; empty where not known"""

    def statistic(self, closeness: Float[Tensor, "m b"], beyond: Sequence[bool]) -> Float[Tensor, " b"]:
        """F, from N, and of which only distance tells."""
        mean, deviation = self.reference.to(closeness).unsqueeze(2).unbind(1)
        steps = (closeness - mean) / deviation
        return sum((1 + z).clamp(max=0) if far else z for z, far in zip(steps, beyond, strict=True))

    def familiarity(self, statistic: Float[Tensor, " b"]) -> Float[Tensor, " b"] | None:
        """(1 + #{F_i ≤ F}) / (m + 1); None where too few photographs could be left out."""
        if len(self.familiar) < FEWEST:
            return None
        rank = torch.searchsorted(self.familiar, statistic.to(self.familiar), right=True)
        return ((1 + rank) / (len(self.familiar) + 1)).float()

    def unlike(self, statistic: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """From 0, where an image looks like the photographs, to 1, where hardly any of them is so strange."""
        if len(self.familiar) < FEWEST:
            return torch.zeros_like(statistic)
        # tensors throughout: a number read out of one would be a branch that no exported graph can have
        start, end = self.familiar.quantile(self.familiar.new_tensor(GATE)).unbind()
        return ((start - statistic) / (start - end).clamp(min=1e-9)).clamp(0, 1)


def fit_novelty(
    left: HeldOutPhotographs,
    beyond: Sequence[bool],
    logits: Float[Tensor, "n k"],
    cosines: Float[Tensor, "n k"],
    by_name: Float[Tensor, "n k"],
) -> Novelty:
    """From left-out photographs, whose F need not be known.

    `logits`: of the known classes; `cosines`: e^scale (x − b)·(t̂_c − t̄), all 0 where no name is read;
    `by_name`: s.
    """
    labels, several = left.labels, left.several
    reference = _reference(left.closeness[:, several])
    usual, none = reference.new_tensor(USUAL), reference.new_tensor([])
    novelty = Novelty(reference, none, usual, none)
    familiar = novelty.statistic(left.closeness, beyond)
    novelty = novelty._replace(familiar=familiar[several].sort().values)
    if not (cosines.any() and cosines.shape[1] > 2):
        return novelty
    # of a class left out whole: what the others say of its photographs
    own = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), True)
    strange = novelty.statistic(left.without_class, beyond)
    rows = torch.arange(len(labels)).to(labels)
    if several.any():
        rows = rows[several]
    rows = rows[:: max(1, -(-len(rows) * own.shape[1] // PAIRS))]
    own, cosines, by_name = own[rows], cosines[rows], by_name[rows]
    looks = torch.where(own, strange[rows].unsqueeze(1), familiar[rows].unsqueeze(1))
    shares = (1 / labels[rows].bincount(minlength=own.shape[1]).to(cosines))[labels[rows]]  # a class once
    asked = torch.stack([-torch.ones_like(looks), -looks, cosines, against_others(by_name)]).flatten(1)
    pairs = torch.stack([torch.zeros_like(asked), asked], dim=2)
    fitted = fit_weights(pairs, own.flatten().long(), usual, shares.repeat_interleave(own.shape[1])).best
    known = logits[rows].masked_fill(own, -torch.inf)
    by_name = known.logsumexp(1) + torch.tensordot(fitted, asked.view(-1, *own.shape)[:, own], dims=1)
    found = (shares * (by_name > known.amax(1))).sum() / shares.sum()
    return novelty._replace(odds=fitted, found=found.reshape(1))


def against_others(by_name: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """s_c − ln Σ_{c' ≠ c} exp s_c', each class against the others."""
    best = by_name.argmax(1, keepdim=True)
    others = by_name.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True)  # where 1 − q_c would be 0
    share = by_name.softmax(1).scatter(1, best, 0.0)
    rest = by_name.logsumexp(1, keepdim=True) + torch.log1p(-share)
    return by_name - rest.scatter(1, best, others)


def openness(
    novelty: Novelty, looks: Float[Tensor, " n"], logits: Float[Tensor, "n k"]
) -> Float[Tensor, " n"]:
    """−v F(x) + ln Σ exp − max of the logits: how far each left-out photograph is open to any new name."""
    return logits.logsumexp(1) - logits.amax(1) - novelty.odds[1] * looks


def reluctance(
    novelty: Novelty, opened: Float[Tensor, " n"], fit: Float[Tensor, "n m"]
) -> Float[Tensor, " m"]:
    """u_n of new names, from left-out photographs: how open each is, and how well each name fits it."""
    ready, least, names = opened.unsqueeze(1) + fit, novelty.odds[0], fit.shape[1]
    if not ready.numel():
        return least.expand(names)
    alone = _upper(ready, BY_ONE).maximum(least)
    share = min(BY_ONE * names, BY_TWENTY * max(1.0, names / 20), 1.0)
    return alone + _upper((ready - alone).amax(1, keepdim=True), share).clamp(min=0)


def _upper(values: Float[Tensor, "n m"], share: float) -> Float[Tensor, " m"]:
    """What a new value exceeds with a chance of no more than so much."""
    counted = values.quantile(1 - share, dim=0, interpolation="higher")
    freedom = len(values) - 1
    if not freedom or len(values) * share >= 1:
        return counted
    z = float(torch.special.ndtri(torch.tensor(1 - share)))
    # Cornish and Fisher's expansion of the quantile of t
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return counted.maximum(values.mean(0) + t * values.std(0) * (1 + 1 / len(values)) ** 0.5)


def _reference(closeness: Float[Tensor, "m n"]) -> Float[Tensor, "m 2"]:
    """Where nothing could be left out, F is 0 of every image."""
    if closeness.shape[1] < 2:
        return closeness.new_tensor([0.0, HUGE]).expand(len(closeness), -1).clone()
    return torch.stack([closeness.mean(1), closeness.std(1).clamp(min=1e-9)], dim=1)
