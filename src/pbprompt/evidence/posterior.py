"""The default model, fitted: names as prior, photographs as evidence, and how far to trust each.

Four experts score every class, and what they say is added up:

    E_1[x, c] = L_c(x)                       the class as a Gaussian about its photographs and its name
                                             (`experts/gaussian.py`, the name moved by `text_map.py`)
    E_2[x, c] = R_c(x)                       single photographs that look alike (`experts/kernel.py`)
    E_3[x, c] = Q_c(x)                       the nearest photograph of the class (`experts/kernel.py`)
    E_4[x, c] = e^scale x·(t_c − t̄)          the name alone, as zero-shot has it
    p(c | x) = mean over w of softmax_c Σ_k w_k E_k[x, c]

Each expert judges every photograph as if it had been left out, exactly. The weights w are fitted to that,
with their uncertainty (`weights.py`). Before any photograph is judged, as where every class has a
single one, they are

    w⁰ = (¾ ρ T₀, 2 ρ, ρ, (1 − ρ) ψ₀)  ρ = N/(N + 20): few photographs say little
                                       T₀ = spread of e^scale x·t_c over the classes / spread of L_c
                                       ψ₀ = the temperature at which names alone tell the photographs best

A left-out photograph is judged by n − 1 of its class, a new one by n, and means of more may be trusted more:
w_1 grows by (n/(n − 1))^¼.

An image unlike all photographs (`novelty.py`), such as a drawing where they are photos, is left to the
names as far as they tell anything, g = I · unlike(x), I the share of ln K that names alone tell:

    p(c | x) ← (1 − g) p(c | x) + g softmax_c(ψ₀ E_4[x, c])

A class known by name alone joins the others at its odds against them (`novelty.py`).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Kept
from pbprompt.evidence.experts.gaussian import Gaussians, diagonalise, fit_gaussians, leave_one_out
from pbprompt.evidence.experts.kernel import Kernel, fit_kernel
from pbprompt.evidence.novelty import HUGE, LeftOutPhotographs, Novelty, fit_novelty, openness, reluctance
from pbprompt.evidence.statistics import Statistics
from pbprompt.evidence.text_map import TextMap, learn_text_map, move
from pbprompt.evidence.weights import Weights, fit_weights

CELLS = 1 << 22  # of a table of left-out photographs by classes
BLOCK = 1 << 19  # of those of them that the Gaussians need at once
FEW = 20.0  # photographs, in w⁰
TRUST = 0.75  # of w⁰_1
NEIGHBOURS, NEAREST = 2.0, 1.0  # of w⁰_2 and w⁰_3
UNNAMED = 0.1  # T₀ where names say nothing
GROWTH = 0.25  # of ln w_1 by ln n


class Posterior(NamedTuple):
    """All that an answer needs; nothing is decomposed any more."""

    gaussians: Gaussians
    kernel: Kernel
    names: Float[Tensor, "k d"]
    """e^scale (t_c − t̄)"""
    weights: Weights
    novelty: Novelty
    text_map: TextMap
    moved_centre: Float[Tensor, " d"]
    """the mean of the moved names of the known classes"""
    name_scale: Float[Tensor, ""]
    """ψ₀"""
    information: Float[Tensor, ""]
    """I"""
    open: Float[Tensor, " n"]
    """of the kernel's photographs, how far each is open to a new name; −1e30 of those that cannot say"""

    def tensors(self) -> dict[str, Tensor]:
        """Flat, by names such as `kernel/bandwidth`, as `from_tensors` takes it."""
        flat: dict[str, Tensor] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Tensor):
                flat[name] = value
            else:
                flat |= {f"{name}/{key}": part for key, part in value._asdict().items()}
        return flat

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        nested: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            whole, _, part = name.rpartition("/")
            nested.setdefault(whole, {})[part] = value
        found: dict[str, Any] = dict(nested.pop(""))
        found |= {name: cls.__annotations__[name](**parts) for name, parts in nested.items()}
        return cls(**found)

    def experts(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "4 b k"]:
        """E of images of length 1."""
        return stacked(
            self.gaussians.log_densities(images), self.kernel.scores(images), images @ self.names.T
        )

    def strangeness(self, experts: Float[Tensor, "4 b k"]) -> Float[Tensor, " b"]:
        """F of images, from what the experts say of all known classes."""
        return self.novelty.statistic(self.gaussians.distances(experts[0]), experts[1])

    def new_names(self, texts: Float[Tensor, "m d"], scale: float) -> "NewNames":
        """Classes known by their texts alone."""
        direction = scale * (move(self.text_map, texts.to(self.text_map.centre)) - self.moved_centre)
        told = self.open > -HUGE
        labelled = self.kernel.photographs[: len(told)][told]  # behind them come those without a label
        photographs = labelled.to(direction) - self.gaussians.centre.to(direction)
        reluctant = reluctance(self.novelty, self.open[told].to(direction), photographs @ direction.T)
        return NewNames(direction, reluctant)


class NewNames(NamedTuple):
    """Names without photographs beside known classes."""

    direction: Float[Tensor, "m d"]
    """e^scale (t̂_n − t̄)"""
    reluctance: Float[Tensor, " m"]
    """u_n"""

    def log_odds(
        self, posterior: Posterior, images: Float[Tensor, "b d"], looks: Float[Tensor, " b"]
    ) -> Float[Tensor, "b m"]:
        """ln o_n against all known classes together; `looks`: F."""
        _, distance, fit = posterior.novelty.odds.to(images).unbind()
        cosines = (images - posterior.gaussians.centre.to(images)) @ self.direction.to(images).T
        return fit * cosines - distance * looks.to(images).unsqueeze(1) - self.reluctance.to(images)


def stacked(
    densities: Float[Tensor, "b k"], by_photographs: Float[Tensor, "2 b k"], by_name: Float[Tensor, "b k"]
) -> Float[Tensor, "4 b k"]:
    """What the experts say, in their order."""
    return torch.cat([densities.unsqueeze(0), by_photographs, by_name.unsqueeze(0)])


def judged_rows(photographs: int, classes: int) -> Int[Tensor, " n"]:
    """Of the kept photographs those that are left out in turn, and that the kernel is made of."""
    return torch.arange(0, photographs, max(1, -(-photographs * classes // CELLS)))


def fit_posterior(
    statistics: Statistics, kept: Kept, texts: Float[Tensor, "k d"], scale: float
) -> tuple[Posterior, LeftOutPhotographs]:
    """From the sums of all photographs, those that are kept, and the names' text features of length 1.

    Every class has photographs. `scale`: exp(logit scale). Texts of 0 are names that nobody can read.
    """
    classes = len(texts)
    rows = judged_rows(len(kept.labels), classes).to(kept.labels)
    images, labels, shares = kept.images[rows].double(), kept.labels[rows], kept.weights[rows]
    texts = texts.double()
    placed = learn_text_map(statistics.means, statistics.counts, texts)
    frame = diagonalise(statistics, placed[1])
    kernel, by_photographs, without_class = fit_kernel(images, labels, classes, shares)
    names = scale * (texts - texts.mean(0))

    blocks = rows.new_tensor(range(len(rows))).split(max(1, BLOCK // max(classes, images.shape[1])))
    parts = [leave_one_out(frame, images[some], labels[some], shares[some]) for some in blocks]
    distances, densities, several = (torch.cat(part) for part in zip(*parts, strict=True))
    experts = stacked(densities, by_photographs, images @ names.T)
    unknown = torch.zeros_like(shares)
    left = LeftOutPhotographs(rows, labels, shares, experts, distances, without_class, several, unknown)
    return judged(fit_gaussians(frame), kernel, names, placed, left, statistics.counts, scale)


def judged(
    gaussians: Gaussians,
    kernel: Kernel,
    names: Float[Tensor, "k d"],
    placed: tuple[TextMap, Float[Tensor, "k d"]],
    left: LeftOutPhotographs,
    counts: Float[Tensor, " k"],
    scale: float,
    absorbed: float = 0.0,
) -> tuple[Posterior, LeftOutPhotographs]:
    """The experts with weights and all that tells the unknown, from left-out photographs, whose F is then
    known too. `placed`: t̂ and how it is found; `absorbed`: how many photographs count beside those with a
    label (`unlabelled.py`).
    """
    text_map, moved = placed
    moved_centre = moved.mean(0)
    name_scale, information = _names_alone(left)
    weights = fit_trust(left, name_scale, counts, absorbed)
    logits = torch.tensordot(weights.best, left.experts, dims=1)
    images = kernel.photographs[: len(left.rows)]  # behind them come those without a label
    novelty = fit_novelty(left, logits, scale * (images - gaussians.centre) @ (moved - moved_centre).T)
    looks = novelty.statistic(left.distances, left.experts[1])
    told = left.several if left.several.any() else torch.ones_like(left.several)
    open_ = torch.where(told, openness(novelty, looks, logits), -HUGE)
    posterior = Posterior(
        gaussians, kernel, names, weights, novelty, text_map, moved_centre, name_scale, information, open_
    )
    return posterior, left._replace(looks=looks)


def mixed_with_names(
    posterior: Posterior,
    logits: Float[Tensor, "s b k"],
    by_name: Float[Tensor, "b k"],
    looks: Float[Tensor, " b"],
) -> Float[Tensor, "s b k"]:
    """log of the class distributions, where images unlike the photographs are left to the names."""
    share = (posterior.information.to(logits) * posterior.novelty.unlike(looks)).to(logits).unsqueeze(1)
    names = (posterior.name_scale.to(logits) * by_name).softmax(-1)
    return ((1 - share) * logits.softmax(-1) + share * names).clamp(min=1e-37).log()


def _names_alone(left: LeftOutPhotographs) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """ψ₀ and I: nothing of a name was fitted to its photographs, so that none need be left out."""
    by_name, labels, shares = left.experts[-1], left.labels, left.shares
    if by_name.shape[1] < 2:
        return by_name.new_tensor(1.0), by_name.new_tensor(0.0)
    scale = fit_weights(by_name.unsqueeze(0), labels, by_name.new_tensor([0.5]), shares).best.squeeze()
    told = (scale * by_name).log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    mean = (shares * told).sum() / shares.sum()
    return scale, (1 + mean / math.log(by_name.shape[1])).clamp(min=0)


def fit_trust(
    left: LeftOutPhotographs,
    name_scale: Float[Tensor, ""],
    counts: Float[Tensor, " k"],
    absorbed: float = 0.0,
) -> Weights:
    """w, from photographs whose class has others left."""
    experts, several, labels, shares = left.experts, left.several, left.labels, left.shares
    rows = several if several.any() else torch.ones_like(several)
    told = experts.shape[2] > (1 if several.any() else 2)  # of two single photographs none is left to compare
    density, name = (float(experts[each][rows].var(1).mean().sqrt()) if told else 0.0 for each in (0, -1))
    as_sure = name / density if density > 0 and name > 0 else UNNAMED
    many = enough(float(counts.sum()) + absorbed)
    by_photographs = [many * each for each in (TRUST * as_sure, NEIGHBOURS, NEAREST)]
    by_name = (1 - enough(float(counts.sum()))) * float(name_scale)
    usual = experts.new_tensor([*by_photographs, by_name]).clamp(min=1e-6)
    weights = fit_weights(experts[:, several], labels[several], usual, shares[several])
    if not several.any():
        return weights
    n = counts[labels[several]]
    grown = GROWTH * (n / (n - shares[several])).log().mean()
    log = weights.log.clone()
    log[0] += grown
    return weights._replace(log=log)


def enough(photographs: float) -> float:
    """ρ"""
    return photographs / (photographs + FEW)
