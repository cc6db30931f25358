"""Photographs without a label as evidence: what each shows is a latent variable.

    z_j ∈ {0, 1, …, K}                          0: none of the classes, where min_c D_c(u_j) > δ
    ℓ_jc = Σ_k w_k E_k[u_j, c]                  what the experts say (`posterior.py`)
    s_jc = softmax_c(τ ℓ_jc + g_c)              sharper, and pulled to classes of equal sizes:
                                                g_c = −½ ln(m_c / m̄) where it settles, m_c = Σ_j s_jc
    r_jc = s_jc · softmax_c(ℓ_jc)               counts as much as it is likely to be right
    n_c + f_c Σ_j r_jc                          photographs of a class, and so its sums and moments;
                                                f_c = min(1, ω n_c / Σ_j r_jc)

| symbol | name here   | meaning                                                                     |
|--------|-------------|-----------------------------------------------------------------------------|
| u_j    | `pool`      | photographs without a label, of length 1                                    |
| δ      | `STRANGE`   | the distance that one in ten left-out labelled photographs exceeds          |
| τ      | `SHARPNESS` | soft shares blur the means                                                  |
| ω      | `MOST`      | all photographs without a label count at most so often as the labelled ones |

Each pass fits the Gaussians anew (`experts/gaussian.py`), which is what ℓ of the next one rests on; the other
experts stay as the labelled photographs have them. E steps that are sharpened and pulled are no EM of one
likelihood: three passes are made, and nothing is claimed to rise. At last the pool joins kernel regression
with targets r_j + (1 − Σ_c r_jc)/K, and counts as the nearest photograph of its likeliest class; not so where
it is the pool itself that is to be classified.

Whether the pool is used is what labelled photographs say: four times, a quarter of them is left out, all is
done without their labels, and they are judged with the pool and without. It is used where their
log likelihood gains more than its standard error, and at least 0.02; the same answers then give the weights.
Where no class has a second photograph nothing can be judged: it is used where the pool has two photographs
per class or more, and either twenty photographs have labels or the names tell something.
"""

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Kept
from pbprompt.evidence.experts.gaussian import Gaussians, diagonalise, fit_gaussians
from pbprompt.evidence.experts.kernel import (
    Kernel,
    bandwidth_of,
    inverse_kernel,
    log_kernel,
    nearest,
    without_group,
)
from pbprompt.evidence.novelty import LeftOutPhotographs, fit_novelty
from pbprompt.evidence.posterior import (
    FEW,
    NEAREST,
    NEIGHBOURS,
    TRUST,
    UNNAMED,
    Posterior,
    enough,
    fit_posterior,
    fit_trust,
    judged,
)
from pbprompt.evidence.rivals.discriminant import places_in_class
from pbprompt.evidence.statistics import Statistics
from pbprompt.evidence.text_map import learn_text_map
from pbprompt.evidence.weights import fit_weights

STRANGE = 0.1
SHARPNESS = 2.0
MOST = 4.0
PASSES = 3
PULLS = 8  # towards equal sizes, each half of what is left
CELLS = 1 << 24  # of a table of the pool by classes
SEEN = 1 << 16  # photographs of the pool, those with the least keys of more
FOLDS = 4
AT_FOLDS = 4096  # of the pool
IN_KERNEL = 2048  # of the pool
SHARE = 0.3  # of a labelled photograph's weight in kernel regression
LEAST = 0.02  # gain in log likelihood per photograph
PER_CLASS = 2  # photographs of the pool, where nothing can be judged
NAMED = 0.1  # of ln K, where nothing can be judged
DRAWS = 16  # of the experts' weights
TINY = 1e-12  # of each class's share: none is without any
NAMES = 0.25  # of a name's logit, once a pool stands beside it and no label does


class Verdict(NamedTuple):
    """What left-out labelled photographs say, with the pool and without."""

    photographs: int
    log_likelihood: tuple[float, float]
    """without, with"""
    accuracy: tuple[float, float]
    error: float
    """standard error of the gain in log likelihood"""

    @property
    def helps(self) -> bool:
        gain = self.log_likelihood[1] - self.log_likelihood[0]
        return gain > max(self.error, LEAST)


class Absorbed(NamedTuple):
    """What became of a pool."""

    posterior: Posterior
    left: LeftOutPhotographs
    familiar: Bool[Tensor, " m"]
    """those that are of a class; not those of a large pool that were not looked at"""
    kernel_rows: Int[Tensor, " p"]
    """of the pool, those that stand in the kernel behind the labelled ones; none where it is not used"""
    weight: float
    """how many photographs the pool counts as; 0: it is not used"""
    verdict: Verdict | None
    """None where nothing could be judged"""


def seen(classes: int) -> int:
    """How many photographs of a pool are looked at."""
    return max(1, min(SEEN, CELLS // classes))


def absorb(
    statistics: Statistics,
    kept: Kept,
    texts: Float[Tensor, "k d"],
    scale: float,
    pool: Float[Tensor, "m d"],
    in_kernel: int = IN_KERNEL,
) -> Absorbed:
    """As `fit_posterior`, with a pool in an order of chance.

    `in_kernel`: how many of it stand there at most; 0 where the pool itself is to be classified, or each
    would vouch for itself.
    """
    base, left = fit_posterior(statistics, kept, texts, scale)
    texts, pool = texts.double(), pool.double()
    distances = base.gaussians.distances(base.gaussians.log_densities(pool)).amin(1)
    familiar = distances <= left.distances.amin(1).quantile(1 - STRANGE)
    rows = familiar.nonzero().squeeze(1)
    unused = Absorbed(base, left, familiar, rows[:0], 0.0, None)
    if not len(rows) or len(texts) < 2:
        return unused
    near, weights = pool[rows], base.weights.best
    together = _Together.of(base.kernel, left.shares, near[:in_kernel])
    if left.several.any():
        left, verdict = _by_folds(base, left, statistics, texts, together, near[:AT_FOLDS])
        unused = unused._replace(verdict=verdict)
        if not verdict.helps:
            return unused
    else:
        count = float(statistics.counts.sum())
        told = count >= FEW or float(base.information) >= NAMED
        if not told or len(near) < PER_CLASS * len(texts):
            return unused
        trust = enough(count + min(float(len(near)), MOST * count)) / enough(count)
        weights = weights * weights.new_tensor([trust, trust, trust, 1.0])
    placed = learn_text_map(statistics.means, statistics.counts, texts)
    said = base.experts(near)[1:]
    gaussians, shares, weight = _passes(base.gaussians, said, weights, statistics, near, placed[1])
    kernel, counts = together.kernel(shares), statistics.counts
    posterior, left = judged(gaussians, kernel, base.names, placed, left, counts, scale, weight)
    return unused._replace(posterior=posterior, left=left, kernel_rows=rows[:in_kernel], weight=weight)


def absorb_by_names(
    texts: Float[Tensor, "k d"], scale: float, pool: Float[Tensor, "m d"]
) -> tuple[Absorbed, Statistics]:
    """Without any label: ℓ are the names' logits at first; the pool counts as four photographs per class at
    most. Also the sums, which labelled photographs can be added to later."""
    texts, pool = texts.double(), pool.double()
    names = scale * (texts - texts.mean(0))
    by_name, nothing = pool @ names.T, Statistics.none(len(texts), texts.shape[1], pool.device)
    shares = shared_out(by_name)
    for _ in range(PASSES):
        statistics, weight = with_pool(nothing, pool, shares + TINY, torch.full_like(nothing.counts, MOST))
        text_map, moved = learn_text_map(statistics.means, statistics.counts, texts)
        gaussians = fit_gaussians(diagonalise(statistics, moved))
        densities = gaussians.log_densities(pool)
        spreads = [float(each.var(1).mean().sqrt()) for each in (by_name, densities)]
        trust = TRUST * (spreads[0] / spreads[1] if min(spreads) > 0 else UNNAMED)
        usual = pool.new_tensor([trust, NEIGHBOURS, NEAREST]) * enough(weight)
        shares = shared_out(usual[0] * densities + NAMES * by_name)
    rows, table, some = torch.arange(len(pool), device=pool.device), by_name[:0], pool[:IN_KERNEL]
    none, once = rows[:0], table[:, 0]
    several, experts = none.bool(), table.expand(4, -1, -1)
    left = LeftOutPhotographs(none, none, once, experts, table, table, several, once)
    kernel = _Together.of(Kernel(pool[:0], none, table, bandwidth_of(some)), once, some).kernel(shares)
    name_scale, information = pool.new_tensor(NAMES), pool.new_zeros(())
    weights = fit_weights(experts, none, torch.cat([usual, name_scale.unsqueeze(0)]))
    novelty, told = fit_novelty(left, table, table), (name_scale, information, once)
    posterior = Posterior(gaussians, kernel, names, weights, novelty, text_map, moved.mean(0), *told)
    familiar = torch.ones_like(rows, dtype=torch.bool)
    absorbed = Absorbed(posterior, left, familiar, rows[:IN_KERNEL], weight, None)
    return absorbed, statistics


class _Together(NamedTuple):
    """The photographs of a kernel, all with a label, those of a pool behind them, and A."""

    labelled: Kernel
    photographs: Float[Tensor, "p d"]
    inverse: Float[Tensor, "p p"]

    @classmethod
    def of(cls, labelled: Kernel, shares: Float[Tensor, " n"], pool: Float[Tensor, "m d"]) -> Self:
        """`shares`: how often each labelled one counts."""
        every = torch.cat([labelled.photographs, pool])
        weights = torch.cat([shares, shares.new_full((len(pool),), SHARE)])
        return cls(labelled, every, inverse_kernel(log_kernel(every, every, labelled.bandwidth), weights))

    def kernel(self, shares: Float[Tensor, "m k"]) -> Kernel:
        """With the pool's r; a photograph of which nothing is known says nothing: r + (1 − Σ r)/K."""
        labels, classes = self.labelled.labels, shares.shape[1]
        likely = shares[: len(self.photographs) - len(labels)]
        soft = likely + (1 - likely.sum(1, keepdim=True)) / classes
        targets = torch.cat([F.one_hot(labels, classes).to(soft), soft])
        coefficients = self.inverse @ (targets - 1 / classes)
        labels = torch.cat([labels, likely.argmax(1)])
        return Kernel(self.photographs, labels, coefficients, self.labelled.bandwidth)

    def left_out(self, kernel: Kernel, rows: Int[Tensor, " r"]) -> Float[Tensor, "2 r k"]:
        """R_c and Q_c of labelled photographs, by a kernel of these without all of those."""
        similar = log_kernel(self.photographs[rows], self.photographs, kernel.bandwidth)
        others = similar.index_fill(1, rows, -torch.inf)
        closest = nearest(others, kernel.labels, kernel.coefficients.shape[1])
        return torch.stack([without_group(kernel, self.inverse, rows), closest])


def _by_folds(
    base: Posterior,
    left: LeftOutPhotographs,
    statistics: Statistics,
    texts: Float[Tensor, "k d"],
    together: _Together,
    pool: Float[Tensor, "m d"],
) -> tuple[LeftOutPhotographs, Verdict]:
    """Every photograph whose class has others judged without its label, with the pool and without."""
    kernel, labels, classes = base.kernel, left.labels, len(texts)
    images, by_name = kernel.photographs, pool @ base.names.T
    alone = _Together.of(kernel, left.shares, pool[:0])
    to_labelled = log_kernel(pool, images, kernel.bandwidth)
    without, with_pool = (
        left._replace(experts=left.experts.clone(), distances=left.distances.clone()) for _ in range(2)
    )
    fold = folds(labels, left.several)
    for number in range(FOLDS):
        out = (fold == number).nonzero().squeeze(1)
        if not len(out):
            continue
        gone = Statistics.of(images[out], labels[out], classes, left.shares[out])
        rest = Statistics(*(mine - its for mine, its in zip(statistics, gone, strict=True)))
        _, moved = learn_text_map(rest.means, rest.counts, texts)
        gaussians = fit_gaussians(diagonalise(rest, moved))
        _put(without, out, gaussians, images, alone.left_out(kernel, out))
        # what the labelled photographs of the other folds say of the pool: α less A_·G A_GG⁻¹ α_G
        left_out = F.one_hot(labels[out], classes).to(images) - 1 / classes - without.experts[1, out]
        fewer = kernel.coefficients - alone.inverse[:, out] @ left_out
        near = to_labelled.index_fill(1, out, -torch.inf)
        said = torch.stack([near.exp() @ fewer, nearest(near, labels, classes), by_name])
        more, shares, _ = _passes(gaussians, said, base.weights.best, rest, pool, moved)
        _put(with_pool, out, more, images, together.left_out(together.kernel(shares), out))
    return with_pool, _verdict(base.name_scale, statistics.counts, without, with_pool)


def _verdict(
    name_scale: Float[Tensor, ""],
    counts: Float[Tensor, " k"],
    without: LeftOutPhotographs,
    with_pool: LeftOutPhotographs,
) -> Verdict:
    several = without.several
    own = without.labels[several].unsqueeze(1)
    likely, right = [], []
    for left in (without, with_pool):
        draws = fit_trust(left, name_scale, counts).draws(DRAWS)
        answers = torch.einsum("se,enk->snk", draws, left.experts[:, several]).softmax(-1).mean(0)
        likely.append(answers.gather(1, own).clamp(min=1e-37).log().squeeze(1))
        right.append(float((answers.argmax(1, keepdim=True) == own).double().mean()))
    gains = likely[1] - likely[0]
    error = float(gains.std() / len(gains) ** 0.5) if len(gains) > 1 else torch.inf
    return Verdict(
        len(gains), (float(likely[0].mean()), float(likely[1].mean())), (right[0], right[1]), error
    )


def folds(labels: Int[Tensor, " n"], several: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Of each photograph the fold; −1 of a class's only one.

    Those of a class go to the folds in turn, so that none is ever left without any; each begins at another.
    """
    return torch.where(several, (places_in_class(labels) + labels) % FOLDS, -1)


def _put(
    left: LeftOutPhotographs,
    rows: Int[Tensor, " r"],
    gaussians: Gaussians,
    images: Float[Tensor, "n d"],
    by_photographs: Float[Tensor, "2 r k"],
) -> None:
    """What the experts say of left-out photographs; of the names nothing changes."""
    densities = gaussians.log_densities(images[rows])
    left.experts[:3, rows] = torch.cat([densities.unsqueeze(0), by_photographs])
    left.distances[rows] = gaussians.distances(densities)


def shared_out(logits: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
    """r, from ℓ."""
    pool, classes = logits.shape
    pull = logits.new_zeros(classes)
    for _ in range(PULLS):
        sizes = (SHARPNESS * logits + pull).softmax(1).sum(0)
        pull = (pull - ((sizes + 1) * classes / (pool + classes)).log()) / 2
    return (SHARPNESS * logits + pull).softmax(1) * logits.softmax(1)


def with_pool(
    statistics: Statistics,
    pool: Float[Tensor, "m d"],
    shares: Float[Tensor, "m k"],
    most: Float[Tensor, " k"],
) -> tuple[Statistics, float]:
    """The sums with those of a pool, and how many photographs it counts as; `most`: at most, per class."""
    capped = shares * (most / shares.sum(0).clamp(min=1e-30)).clamp(max=1)
    often = capped.sum(1, keepdim=True)
    more = Statistics(capped.sum(0), capped.T @ pool, pool.T @ (often * pool))
    return statistics.merged(more), float(often.sum())


def _passes(
    gaussians: Gaussians,
    said: Float[Tensor, "3 m k"],
    weights: Float[Tensor, "4"],
    statistics: Statistics,
    pool: Float[Tensor, "m d"],
    moved: Float[Tensor, "k d"],
) -> tuple[Gaussians, Float[Tensor, "m k"], float]:
    """Gaussians with the pool, of which the other experts `said` what they say; r, and how many photographs
    it counts as."""
    fixed = torch.tensordot(weights[1:], said, dims=1)
    shares = shared_out(weights[0] * gaussians.log_densities(pool) + fixed)
    weight = 0.0
    for _ in range(PASSES):
        more, weight = with_pool(statistics, pool, shares, MOST * statistics.counts)
        gaussians = fit_gaussians(diagonalise(more, moved))
        shares = shared_out(weights[0] * gaussians.log_densities(pool) + fixed)
    return gaussians, shares, weight
