"""Photographs without a label as evidence: what each shows is a latent variable.

    z_j ∈ {0, 1, …, K}                          0: none of the classes, where min_c D_c(u_j) > δ
    ℓ_jc = Σ_k w_k E_k[u_j, c]                  what the experts say (`core/posterior.py`)
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

Each pass fits the Gaussians anew (`core/gaussian.py`), which is what ℓ of the next one rests on; the other
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

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core.evidence import Kept
from pbprompt.core.expert_weights import DOUBT, Weights
from pbprompt.core.gaussian import Gaussians, diagonalise, fit_gaussians
from pbprompt.core.kernel import Kernel, bandwidth_of, inverse_kernel, log_kernel, nearest, without_group
from pbprompt.core.novelty import Tables, fit_novelty
from pbprompt.core.posterior import (
    FEW,
    NEAREST,
    NEIGHBOURS,
    TRUST,
    UNNAMED,
    Fitted,
    LeftOutPhotographs,
    Posterior,
    enough,
    fit_posterior,
    fit_trust,
    judged,
)
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import TextMap, learn_text_map

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
    changes: tuple[float, ...]
    """the share of the pool whose likeliest class changed, per pass"""


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
    pool = pool.double()
    distances = base.gaussians.distances(base.gaussians.log_densities(pool)).amin(1)
    familiar = distances <= left.distances.amin(1).quantile(1 - STRANGE)
    rows = familiar.nonzero().squeeze(1)
    unused = Absorbed(base, left, familiar, rows[:0], 0.0, None, ())
    if not len(rows) or len(texts) < 2:
        return unused
    labelled = _Labelled(base, left, kept, statistics, texts.double(), in_kernel)
    near, weights = pool[rows], base.weights.best
    if left.several.any():
        left, verdict = labelled.by_folds(near[:AT_FOLDS], weights)
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
    text_map, moved = _moved(statistics, labelled.texts)
    found = _passes(base.gaussians, base.experts(near)[1:], weights, statistics, near, moved)
    kernel = labelled.kernel(near, found.shares)
    fitted = Fitted(found.gaussians, kernel, base.names, text_map, moved)
    posterior, left = judged(fitted, left, kept, statistics.counts, scale, found.weight)
    return unused._replace(
        posterior=posterior,
        left=left,
        kernel_rows=rows[:in_kernel],
        weight=found.weight,
        changes=found.changes,
    )


def absorb_by_names(
    texts: Float[Tensor, "k d"], scale: float, pool: Float[Tensor, "m d"]
) -> tuple[Absorbed, Statistics]:
    """Without any label: ℓ are the names' logits at first; the pool counts as four photographs per class at
    most. Also the sums, which labelled photographs can be added to later."""
    texts, pool = texts.double(), pool.double()
    names = scale * (texts - texts.mean(0))
    by_name, classes = pool @ names.T, len(texts)
    sizes = ((classes,), texts.shape, 2 * texts.shape[1:])
    nothing = Statistics(*(pool.new_zeros(size) for size in sizes))
    shares, changes = shared_out(by_name), []
    for _ in range(PASSES):
        statistics, weight = with_pool(nothing, pool, shares + TINY, torch.full_like(nothing.counts, MOST))
        text_map, moved = _moved(statistics, texts)
        gaussians = fit_gaussians(diagonalise(statistics, moved))
        densities = gaussians.log_densities(pool)
        spreads = [float(each.var(1).mean().sqrt()) for each in (by_name, densities)]
        trust = TRUST * (spreads[0] / spreads[1] if min(spreads) > 0 else UNNAMED)
        usual = pool.new_tensor([trust, NEIGHBOURS, NEAREST]) * enough(weight)
        before = shares.argmax(1)
        shares = shared_out(usual[0] * densities + NAMES * by_name)
        changes.append(float((shares.argmax(1) != before).double().mean()))
    some, likely = pool[:IN_KERNEL], shares[:IN_KERNEL]
    bandwidth = bandwidth_of(some)
    inverse = inverse_kernel(some, pool.new_full((len(some),), SHARE), bandwidth)
    kernel = Kernel(some, likely.argmax(1), inverse @ (_targets(likely) - 1 / classes), bandwidth)
    weights = Weights(torch.cat([usual, pool.new_tensor([NAMES])]).log(), DOUBT**-0.5 * torch.eye(4).to(pool))
    table = pool.new_zeros(0, classes)
    several = torch.zeros(0, dtype=torch.bool, device=pool.device)
    rows = torch.arange(len(pool), device=pool.device)
    novelty = fit_novelty(Tables(table, table, table, table, table, several), rows[:0], names=True)
    told = pool.new_tensor(NAMES), pool.new_zeros(()), pool.new_zeros(0)
    posterior = Posterior(gaussians, kernel, names, weights, novelty, text_map, moved.mean(0), *told)
    left = LeftOutPhotographs(
        rows[:0], pool.new_zeros(4, 0, classes), table, table, several, pool.new_zeros(0)
    )
    familiar = torch.ones_like(rows, dtype=torch.bool)
    absorbed = Absorbed(posterior, left, familiar, rows[:IN_KERNEL], weight, None, tuple(changes))
    return absorbed, statistics


def _moved(statistics: Statistics, texts: Float[Tensor, "k d"]) -> tuple[TextMap, Float[Tensor, "k d"]]:
    return learn_text_map(statistics.sums / statistics.counts.unsqueeze(1), statistics.counts, texts)


class _Labelled(NamedTuple):
    """The labelled photographs that are left out in turn, and what was fitted to all of them."""

    base: Posterior
    left: LeftOutPhotographs
    kept: Kept
    statistics: Statistics
    texts: Float[Tensor, "k d"]
    in_kernel: int = IN_KERNEL

    @property
    def images(self) -> Float[Tensor, "n d"]:
        return self.kept.images[self.left.rows].double()

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return self.kept.labels[self.left.rows]

    @property
    def shares(self) -> Float[Tensor, " n"]:
        return self.kept.weights[self.left.rows]

    @property
    def targets(self) -> Float[Tensor, "n k"]:
        return F.one_hot(self.labels, len(self.texts)).double()

    def together(self, pool: Float[Tensor, "m d"]) -> tuple[Float[Tensor, "p d"], Float[Tensor, "p p"]]:
        """Photographs of the kernel with those of the pool, and A."""
        every = torch.cat([self.images, pool[: self.in_kernel]])
        more = self.shares.new_full((len(every) - len(self.images),), SHARE)
        inverse = inverse_kernel(every, torch.cat([self.shares, more]), self.base.kernel.bandwidth)
        return every, inverse

    def kernel(self, pool: Float[Tensor, "m d"], shares: Float[Tensor, "m k"]) -> Kernel:
        """Of the labelled photographs and of the pool."""
        likely = shares[: self.in_kernel]
        every, inverse = self.together(pool)
        targets = torch.cat([self.targets, _targets(likely)])
        labels = torch.cat([self.labels, likely.argmax(1)])
        return Kernel(every, labels, inverse @ (targets - 1 / len(self.texts)), self.base.kernel.bandwidth)

    def by_folds(
        self, pool: Float[Tensor, "m d"], weights: Float[Tensor, "4"]
    ) -> tuple[LeftOutPhotographs, Verdict]:
        """Every photograph whose class has others judged without its label, with the pool and without."""
        images, labels, targets, classes = self.images, self.labels, self.targets, len(self.texts)
        base, count, bandwidth = self.base, len(self.labels), self.base.kernel.bandwidth
        every, together = self.together(pool)
        similar = log_kernel(images, every, bandwidth)
        to_labelled = log_kernel(pool, images, bandwidth)
        alone = inverse_kernel(images, self.shares, bandwidth)
        coefficients = alone @ (targets - 1 / classes)
        without, with_pool = (
            self.left._replace(experts=self.left.experts.clone(), distances=self.left.distances.clone())
            for _ in range(2)
        )
        fold = folds(labels, self.left.several)
        for number in range(FOLDS):
            out, others = (fold == number).nonzero().squeeze(1), (fold != number).nonzero().squeeze(1)
            if not len(out):
                continue
            gone = Statistics.of(images[out], labels[out], classes, self.shares[out])
            rest = Statistics(*(mine - its for mine, its in zip(self.statistics, gone, strict=True)))
            _, moved = _moved(rest, self.texts)
            gaussians = fit_gaussians(diagonalise(rest, moved))
            others_alone = similar[out][:, :count].index_fill(1, out, -torch.inf)
            by_kernel = without_group(alone, targets, coefficients, out)
            _put(without, out, gaussians, images, by_kernel, nearest(others_alone, labels, classes))
            # what the labelled photographs of the other folds say of the pool
            block = torch.linalg.cholesky(alone[out][:, out])
            left_out = torch.cholesky_solve(coefficients[out], block)
            fewer = coefficients[others] - alone[others][:, out] @ left_out
            near = to_labelled[:, others]
            said = torch.stack(
                [near.exp() @ fewer, nearest(near, labels[others], classes), pool @ base.names.T]
            )
            found = _passes(gaussians, said, weights, rest, pool, moved)
            likely = found.shares[: self.in_kernel]
            soft = torch.cat([targets, _targets(likely)])
            by_kernel = without_group(together, soft, together @ (soft - 1 / classes), out)
            others_too = similar[out].index_fill(1, out, -torch.inf)
            closest = nearest(others_too, torch.cat([labels, likely.argmax(1)]), classes)
            _put(with_pool, out, found.gaussians, images, by_kernel, closest)
        return with_pool, self._verdict(without, with_pool)

    def _verdict(self, without: LeftOutPhotographs, with_pool: LeftOutPhotographs) -> Verdict:
        several = self.left.several
        own = self.labels[several].unsqueeze(1)
        likely, right = [], []
        for left in (without, with_pool):
            trust = fit_trust(
                left, self.labels, self.shares, self.base.name_scale, self.statistics.counts, 0.0
            )
            logits = torch.einsum("se,enk->snk", trust.draws(DRAWS), left.experts[:, several])
            answers = logits.softmax(-1).mean(0)
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
    order = labels.argsort(stable=True)
    sizes = labels.bincount()
    starts = (sizes.cumsum(0) - sizes)[labels[order]]
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels)).to(labels) - starts
    return torch.where(several, (place + labels) % FOLDS, -1)


def _put(
    left: LeftOutPhotographs,
    rows: Int[Tensor, " r"],
    gaussians: Gaussians,
    images: Float[Tensor, "n d"],
    by_kernel: Float[Tensor, "r k"],
    closest: Float[Tensor, "r k"],
) -> None:
    """What the experts say of left-out photographs; of the names nothing changes."""
    densities = gaussians.log_densities(images[rows])
    left.experts[:3, rows] = torch.stack([densities, by_kernel, closest])
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


class _Found(NamedTuple):
    gaussians: Gaussians
    shares: Float[Tensor, "m k"]
    """r"""
    weight: float
    changes: tuple[float, ...]


def _passes(
    gaussians: Gaussians,
    said: Float[Tensor, "3 m k"],
    weights: Float[Tensor, "4"],
    statistics: Statistics,
    pool: Float[Tensor, "m d"],
    moved: Float[Tensor, "k d"],
) -> _Found:
    """Gaussians with the pool, of which the other experts `said` what they say."""
    fixed = torch.tensordot(weights[1:], said, dims=1)
    shares = shared_out(weights[0] * gaussians.log_densities(pool) + fixed)
    changes: list[float] = []
    weight = 0.0
    for _ in range(PASSES):
        more, weight = with_pool(statistics, pool, shares, MOST * statistics.counts)
        gaussians = fit_gaussians(diagonalise(more, moved))
        before = shares.argmax(1)
        shares = shared_out(weights[0] * gaussians.log_densities(pool) + fixed)
        changes.append(float((shares.argmax(1) != before).double().mean()))
    return _Found(gaussians, shares, weight, tuple(changes))


def _targets(shares: Float[Tensor, "m k"]) -> Float[Tensor, "m k"]:
    """r + (1 − Σ r)/K: a photograph of which nothing is known says nothing."""
    return shares + (1 - shares.sum(1, keepdim=True)) / shares.shape[1]
