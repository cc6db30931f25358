"""Photographs without a label as evidence: what each shows is a latent variable.

    z_j ∈ {0, 1, …, K}                          0: none of the classes, where min_c D_c(u_j) > δ
    ℓ_jc = Σ_k w_k E_k[u_j, c]                  what the experts say (`posterior.py`)
    s_jc(τ, λ) = softmax_c(τ ℓ_jc + g_c)        sharper, and pulled to classes of equal sizes:
                                                (1 − λ) g_c = −λ ln(m_c / m̄) where it settles, m_c = Σ_j s_jc
    r_jc = (1 − U) s_jc(2, ½) softmax_c(ℓ_jc)   counts as much as it is likely to be right; but as answers say
           + U s_jc(1, min(1, ε²/V))            where names tell them
    n_c + f_c Σ_j r_jc                          photographs of a class, and so its sums and moments;
                                                f_c = min(1, ω n_c / Σ_j r_jc)

| symbol | name here   | meaning                                                                     |
|--------|-------------|-----------------------------------------------------------------------------|
| u_j    | `pool`      | photographs without a label, of length 1                                    |
| δ      | `STRANGE`   | the distance that one in ten left-out labelled photographs exceeds          |
| τ      | `SHARPNESS` | soft shares blur the means                                                  |
| U      | `useful`    | how far names tell the labelled photographs (`weights.py`); 1 without any     |
| ε      |             | how often the answers themselves expect to err: 1 − the mean of max_c       |
| V      |             | variance of ln m_c over the classes, before any pull                        |
| ω      | `MOST`      | all photographs without a label count at most so often as the labelled ones |

Answers that names tell are as sure as they should be. Sharper ones would be surer of their own errors, and
those that count as much as they are sure would count each class by its plainest photographs: an image counts
for each class by what it is likely to be. Errors move the sizes of classes by ε or so: sizes that differ by
no more are taken for equal, and those that errors do not explain stay.

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

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Statistics, joined
from pbprompt.evidence.expert import Expert, HeldOutPhotographs, Photographs, Seen
from pbprompt.evidence.experts import EXPERTS
from pbprompt.evidence.experts.gaussian import Gaussians, fit_gaussians, whitened
from pbprompt.evidence.experts.kernel import (
    Kernel,
    Nearest,
    bandwidth_of,
    inverse_kernel,
    log_kernel,
    nearest,
    without_group,
)
from pbprompt.evidence.experts.name import Names
from pbprompt.evidence.novelty import fit_novelty
from pbprompt.evidence.posterior import Posterior, View, beyond, fit_posterior, judged, kinds_of
from pbprompt.evidence.text_map import learn_text_map
from pbprompt.evidence.weights import (
    FEW,
    UNNAMED,
    YIELDS,
    combined,
    enough,
    fit_trust,
    fit_weights,
    told_by_names,
)

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
NAMES = 1.0  # ψ₀, where no label can tell it: as the backbone was trained


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
    left: HeldOutPhotographs
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
    photographs: Sequence[Photographs], pools: Sequence[Float[Tensor, "m _"]], in_kernel: int = IN_KERNEL
) -> Absorbed:
    """As `fit_posterior`, with a pool in an order of chance; of each backbone its photographs and its pool.

    `in_kernel`: how many of it stand there at most; 0 where the pool itself is to be classified, or each
    would vouch for itself.
    """
    base, left = fit_posterior(*photographs)
    pools = [pool.double() for pool in pools]
    familiar = _of_a_class(base, left, pools)
    rows = familiar.nonzero().squeeze(1)
    unused = Absorbed(base, left, familiar, rows[:0], 0.0, None)
    first = photographs[0]
    if not len(rows) or first.classes < 2:
        return unused
    near, weights = [pool[rows] for pool in pools], base.weights.best
    together = [
        _Together.of(cast(Kernel, view.experts["kernel"]), left.shares, pool[:in_kernel])
        for view, pool in zip(base.views, near, strict=True)
    ]
    if left.several.any():
        left, verdict = _by_folds(base, left, photographs, together, [pool[:AT_FOLDS] for pool in near])
        unused = unused._replace(verdict=verdict)
        if not verdict.helps:
            return unused
    else:
        count = float(first.statistics.counts.sum())
        told = count >= FEW or float(base.information) >= NAMED
        if not told or len(rows) < PER_CLASS * first.classes:
            return unused
        trust = enough(count + min(float(len(rows)), MOST * count)) / enough(count)
        weights = weights * weights.new_tensor(
            [trust if kind.from_photographs else 1.0 for kind in base.kinds]
        )
    scores = base.scores(*(Seen(pool) for pool in near))
    sums = [each.statistics for each in photographs]
    moved = [each.placed[1] for each in photographs]
    gaussians, shares, weight = _passes(base, scores, weights, sums, near, moved)
    views = [
        _with_pool(view, gauss, each.kernel(shares))
        for view, gauss, each in zip(base.views, gaussians, together, strict=True)
    ]
    posterior, left = judged(views, photographs, left, weight)
    return unused._replace(posterior=posterior, left=left, kernel_rows=rows[:in_kernel], weight=weight)


def _of_a_class(
    base: Posterior, left: HeldOutPhotographs, pools: Sequence[Float[Tensor, "m _"]]
) -> Bool[Tensor, " m"]:
    """z > 0, to every backbone."""
    familiar = torch.ones(len(pools[0]), dtype=torch.bool, device=pools[0].device)
    for place, (view, pool) in enumerate(zip(base.views, pools, strict=True)):
        gaussians = cast(Gaussians, view.experts["gaussians"])
        usual = -left.closeness[_row(base.views, place, "gaussians", telling=True)]
        familiar &= -gaussians.closeness(gaussians.scores(Seen(pool))) <= usual.quantile(1 - STRANGE)
    return familiar


def _with_pool(view: View, gaussians: Gaussians, kernel: Kernel) -> View:
    """Experts that took a pool in; the others are as the labelled photographs have them."""
    near = cast(Nearest, view.experts["nearest"])._replace(
        photographs=kernel.photographs, labels=kernel.labels
    )
    return view._replace(
        experts={**view.experts, "gaussians": gaussians, "kernel": kernel, "nearest": near},
        photographs=kernel.photographs,
    )


def absorb_by_names(
    texts: Sequence[Float[Tensor, "k _"]], scales: Sequence[float], pools: Sequence[Float[Tensor, "m _"]]
) -> tuple[Absorbed, Statistics]:
    """Without any label: ℓ are the names' logits at first, of several backbones their mean; the pool counts
    as four photographs per class at most, and weighs what it would beside names that tell all (U = 1), since
    nothing else can tell. Also the sums, which labelled photographs can be added to later."""
    texts, pools = [each.double() for each in texts], [pool.double() for pool in pools]
    pool, classes, widths = joined(pools), len(texts[0]), [each.shape[1] for each in texts]
    read = pool.new_tensor([bool(each.any()) for each in texts])
    name_scale = NAMES * read / read.sum().clamp(min=1)
    names = [Names(scale * (each - each.mean(0))) for scale, each in zip(scales, texts, strict=True)]
    by_name = torch.stack([each.scores(Seen(own)) for each, own in zip(names, pools, strict=True)])
    told = torch.einsum("v,vmk->mk", name_scale, by_name)
    nothing, shares = Statistics.none(classes, pool.shape[1], pool.device), shared_out(told, 1.0)
    for _ in range(PASSES):
        statistics, weight = with_pool(nothing, pool, shares + TINY, torch.full_like(nothing.counts, MOST))
        gaussians, centres, usual, logits = [], [], list[float](), told
        for own, text, seen_, said, scale in zip(
            statistics.by_each(widths), texts, pools, by_name, name_scale, strict=True
        ):
            text_map, moved = learn_text_map(own.means, own.counts, text)
            gaussians.append(fit_gaussians(whitened(own, moved)))
            centres.append((text_map, moved.mean(0), own.means.mean(0)))
            densities = gaussians[-1].scores(Seen(seen_))
            spreads = [float(each.var(1).mean().sqrt()) for each in (said, densities)]
            sure = EXPERTS["gaussians"].usual * (spreads[0] / spreads[1] if min(spreads) > 0 else UNNAMED)
            trust = enough(weight) * (1 - YIELDS * enough(weight)) / len(texts)
            by_photographs = [sure, EXPERTS["kernel"].usual, EXPERTS["nearest"].usual]
            usual += [trust * each for each in by_photographs] + [max(float(scale), 1e-6)]
            logits = logits + trust * sure * densities
        shares = shared_out(logits, 1.0)
    rows = torch.arange(len(pool), device=pool.device)
    none, table = rows[:0], told[:0]
    once, views = table[:, 0], []
    for gauss, centre, name, seen_ in zip(gaussians, centres, names, pools, strict=True):
        width = bandwidth_of(seen_[:IN_KERNEL])
        kernel = _Together.of(Kernel(seen_[:0], none, table, width), once, seen_[:IN_KERNEL]).kernel(shares)
        near = Nearest(seen_[:0], none, width, torch.arange(classes, device=pool.device))
        experts: dict[str, Expert] = {"gaussians": gauss, "kernel": kernel, "nearest": near, "names": name}
        views.append(_with_pool(View(experts, seen_[:0], *centre), gauss, kernel))
    scores, close = table.expand(len(usual), -1, -1), table[:, :1].T.expand(len(beyond(views)), -1)
    left = HeldOutPhotographs(none, once, once, none.bool(), scores, close, close, once)
    weights = fit_weights(scores, none, pool.new_tensor(usual))
    novelty = fit_novelty(left, beyond(views), table, table, table)
    posterior = Posterior(views, weights, novelty, name_scale, pool.new_zeros(()), once)
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
    left: HeldOutPhotographs,
    photographs: Sequence[Photographs],
    together: Sequence[_Together],
    pools: Sequence[Float[Tensor, "m _"]],
) -> tuple[HeldOutPhotographs, Verdict]:
    """Every photograph whose class has others held out with the pool there, and what is gained by that."""
    labels, classes = left.labels, photographs[0].classes
    alone = [_Together.of(each.labelled, left.shares, each.photographs[:0]) for each in together]
    to_labelled = [
        log_kernel(p, each.labelled.photographs, each.labelled.bandwidth)
        for p, each in zip(pools, alone, strict=True)
    ]
    said, tables = base.scores(*(Seen(pool) for pool in pools)), ("scores", "closeness", "without_class")
    with_pool = left._replace(**{name: getattr(left, name).clone() for name in tables})
    with_pool = with_pool._replace(left=torch.ones_like(left.left))  # the pool stays
    for gone, asked in photographs[0].dealt(FOLDS):
        scores, rest = said.clone(), [each.without(gone) for each in photographs]
        for place, (fewer, own) in enumerate(zip(rest, alone, strict=True)):
            # what the labelled photographs of the other folds say of the pool: α less A_·G A_GG⁻¹ α_G
            kernel, put = own.labelled, partial(_row, base.views, place)
            lost = F.one_hot(labels[gone], classes).to(scores) - 1 / classes
            lost -= without_group(kernel, own.inverse, gone)
            near = to_labelled[place].index_fill(1, gone, -torch.inf)
            scores[put("kernel")] = near.exp() @ (kernel.coefficients - own.inverse[:, gone] @ lost)
            scores[put("nearest")] = nearest(near, labels, classes)
            gaussians = fit_gaussians(whitened(fewer.statistics, fewer.placed[1]))
            scores[put("gaussians")] = gaussians.scores(Seen(pools[place]))
        sums, moved = [each.statistics for each in rest], [each.placed[1] for each in rest]
        more, shares, _ = _passes(base, scores, base.weights.best, sums, pools, moved)
        for place, each in enumerate(together):
            by_kernel = each.left_out(each.kernel(shares), gone)[:, torch.isin(gone, asked)]
            _put(with_pool, base.views, place, asked, more[place], photographs[place], by_kernel)
    return with_pool, _verdict(base, photographs[0], left, with_pool)


def _verdict(
    base: Posterior, photographs: Photographs, without: HeldOutPhotographs, with_pool: HeldOutPhotographs
) -> Verdict:
    several = without.several
    own = without.labels[several].unsqueeze(1)
    likely, right = [], []
    for left in (without, with_pool):
        known = base.name_scale, base.information, photographs.statistics.counts
        draws = fit_trust(kinds_of(base.views), left, *known).draws(DRAWS)
        answers = combined(left.scores[:, several], draws).softmax(-1).mean(0)
        likely.append(answers.gather(1, own).clamp(min=1e-37).log().squeeze(1))
        right.append(float((answers.argmax(1, keepdim=True) == own).double().mean()))
    gains = likely[1] - likely[0]
    error = float(gains.std() / len(gains) ** 0.5) if len(gains) > 1 else torch.inf
    return Verdict(
        len(gains), (float(likely[0].mean()), float(likely[1].mean())), (right[0], right[1]), error
    )


def _row(views: Sequence[View], place: int, name: str, *, telling: bool = False) -> int:
    """Of an expert of one backbone, among all, or among those that tell how near an image is."""
    every = [(at, each) for at, view in enumerate(views) for each in view.experts]
    if telling:
        every = [(at, each) for at, each in every if EXPERTS[each].only_beyond is not None]
    return every.index((place, name))


def _put(
    left: HeldOutPhotographs,
    views: Sequence[View],
    place: int,
    rows: Int[Tensor, " r"],
    gaussians: Gaussians,
    photographs: Photographs,
    by_photographs: Float[Tensor, "2 r k"],
) -> None:
    """What the experts that take a pool in say of held-out photographs; of the others nothing changes."""
    densities = gaussians.scores(Seen(photographs.images[rows]))
    for name, table in zip(("gaussians", "kernel", "nearest"), (densities, *by_photographs), strict=True):
        left.scores[_row(views, place, name), rows] = table
    others = densities.masked_fill(photographs.own[rows], -torch.inf)
    at, by_kernel = (_row(views, place, name, telling=True) for name in ("gaussians", "kernel"))
    left.closeness[at, rows] = gaussians.closeness(densities)
    left.without_class[at, rows] = gaussians.closeness(others)
    left.closeness[by_kernel, rows] = by_photographs[0].amax(1)


def shared_out(logits: Float[Tensor, "m k"], useful: float) -> Float[Tensor, "m k"]:
    """r, from ℓ and U."""
    said = logits.softmax(1)
    errors, sizes = 1 - said.amax(1).mean(), _sizes(said)
    as_said = pulled(logits, float((errors.square() / sizes.var().clamp(min=1e-30)).clamp(max=1)))
    return (1 - useful) * pulled(SHARPNESS * logits, 0.5) * said + useful * as_said


def pulled(logits: Float[Tensor, "m k"], share: float) -> Float[Tensor, "m k"]:
    """s, to sizes that are equal by `share` (λ)."""
    pull = logits.new_zeros(logits.shape[1])
    for _ in range(PULLS):
        pull = share * (pull - _sizes((logits + pull).softmax(1)))
    return (logits + pull).softmax(1)


def _sizes(shares: Float[Tensor, "m k"]) -> Float[Tensor, " k"]:
    """ln (m_c + 1)/(m̄ + 1)"""
    pool, classes = shares.shape
    return ((shares.sum(0) + 1) * classes / (pool + classes)).log()


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
    base: Posterior,
    scores: Float[Tensor, "e m k"],
    weights: Float[Tensor, " e"],
    statistics: Sequence[Statistics],
    pools: Sequence[Float[Tensor, "m _"]],
    moved: Sequence[Float[Tensor, "k _"]],
) -> tuple[list[Gaussians], Float[Tensor, "m k"], float]:
    """Gaussians with the pool, of which the other experts say what they say in `scores`; r, and how many
    photographs it counts as."""
    rows, weight = [_row(base.views, place, "gaussians") for place in range(len(pools))], 0.0
    useful = told_by_names(base.information, base.name_scale)
    gaussians: list[Gaussians] = []
    scores = scores.clone()
    shares = shared_out(combined(scores, weights.unsqueeze(0))[0], useful)
    for _ in range(PASSES):
        gaussians = []
        for row, sums, pool, names in zip(rows, statistics, pools, moved, strict=True):
            more, weight = with_pool(sums, pool, shares, MOST * sums.counts)
            gaussians.append(fit_gaussians(whitened(more, names)))
            scores[row] = gaussians[-1].scores(Seen(pool))
        shares = shared_out(combined(scores, weights.unsqueeze(0))[0], useful)
    return gaussians, shares, weight
