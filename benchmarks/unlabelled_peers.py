"""What others do with images that have no label, on features of length 1, for `benchmarks/unlabelled.py`.

TransCLIP (Zanella et al., NeurIPS 2024). One Gaussian per class, a diagonal covariance for all of them:

    z_i ∝ ŷ_i^λ · exp( log p_i / τ + (Σ_j (w_ij + w_ji) z_j + Σ_s w_si y_s) / 6 )     5 times, then
    μ_k = Σ_i a_i z_ik f_i / Σ_i a_i z_ik, of length 1                                a: 1/|Q| of the pool,
    σ² = Σ_i a_i Σ_k z_ik (f_i − μ_k)² / Σ_i a_i                                      50γ/|S| of the labelled

ŷ is what the names say, w the cosine of an image and its three nearest ones in the pool; ten rounds. λ is
1/2, and 1 without labels. Other images have no neighbours: their z is ŷ^λ · exp(log p / τ). τ is 50 in the
authors' code, made for CLIP, and 1 in their equations. They choose γ by more labelled images: here half of
the labelled ones choose it and, in a row of its own, τ with it.

EM-Dirichlet (Martin et al., CVPR 2024). Features are q = softmax(T · names' cosines), a Dirichlet per class:

    α_k  maximises  Σ_i z_ik log Dir(q_i; α_k)      z of the labelled ones is known
    z_i ∝ π^ρ · Dir(q_i; α),  π_k = mean_i z_ik     twenty rounds

The class-size penalty ρ is K over the classes that the pool shows: the authors' pools show five, ours all. T
is 10 to 50 where CLIP's own scale is 100, the same share of another scale, chosen as γ is (the authors': 30).
The maximum is found by Newton's steps in place of the authors' own, which lead to the same. Without labels,
classes and clusters are matched at the end.

`SelfTrainingClassifier` and `LabelSpreading` are scikit-learn's, with its own settings.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from torch import Tensor

ROUNDS, INNER, NEIGHBOURS, CONFIDENT = 10, 5, 3, 8
# τ and γ; of every list of settings, the first is taken where no labelled image can be spared to choose
PUBLISHED = tuple((50.0, gamma) for gamma in (0.02, 0.002, 0.01, 0.2))
TUNED = tuple((temper, gamma) for temper in (10.0, 1.0, 50.0) for gamma in (0.002, 0.02, 0.2))
DIRICHLET_ROUNDS, NEWTON, EPSILON = 20, 100, 1e-15
SUREST = 25_000.0  # Σ α of a class of one image, which has no maximum: about where the authors' steps end
FLATTER = (0.3, 0.1, 0.2, 0.4, 0.5)  # T, of the scale
STRENGTHS = (1, 10, 100)  # C of logistic regression


class Given(NamedTuple):
    """All of length 1 and in float64; without labels, `images` has no rows."""

    images: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    pool: Float[Tensor, "m d"]
    texts: Float[Tensor, "k d"]
    scale: float

    @property
    def targets(self) -> Float[Tensor, "n k"]:
        return F.one_hot(self.labels, len(self.texts)).double()


class Found(NamedTuple):
    """Probabilities of the pool's images, and those of any others."""

    shares: Float[Tensor, "m k"]
    answers: Callable[[Float[Tensor, "b d"]], Float[Tensor, "b k"]]


Setting = TypeVar("Setting")


def chosen(given: Given, settings: Sequence[Setting], fit: Callable[[Given, Setting], Found]) -> Setting:
    """The setting that, fitted to every second labelled image of a class, is right most often on the rest."""
    sizes = given.labels.bincount()
    if not len(sizes) or int(sizes.max()) < 2:
        return settings[0]
    order = given.labels.argsort(stable=True)
    place = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[given.labels[order]]
    some, out = order[place % 2 == 0], order[place % 2 == 1]
    few = given._replace(images=given.images[some], labels=given.labels[some])

    def right(setting: Setting) -> int:
        said = fit(few, setting).answers(given.images[out]).argmax(1)
        return int((said == given.labels[out]).sum())

    return max(settings, key=right)


# TransCLIP


class Mixture(NamedTuple):
    means: Float[Tensor, "k d"]
    variances: Float[Tensor, " d"]

    def log_densities(self, images: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        """But for what all classes share."""
        directions = self.means / self.variances
        return images @ directions.T - (directions * self.means).sum(1) / 2


def affinity(images: Float[Tensor, "n d"], pool: Float[Tensor, "m d"], itself: bool) -> Tensor:
    """w, sparse: the cosines of the nearest of the pool; `itself`: the images are the pool."""
    similar = images @ pool.T
    if itself:
        similar.fill_diagonal_(-torch.inf)
    near = similar.topk(min(NEIGHBOURS, len(pool) - itself), dim=1)
    rows = torch.arange(len(images)).repeat_interleave(near.indices.shape[1])
    places = torch.stack([rows, near.indices.flatten()])
    values = near.values.flatten().clamp(min=0)
    return torch.sparse_coo_tensor(places, values, similar.shape, check_invariants=False).coalesce()


def shared(
    fixed: Float[Tensor, "m k"],
    shares: Float[Tensor, "m k"],
    graph: Tensor,
    by_labelled: Float[Tensor, "m k"],
) -> Float[Tensor, "m k"]:
    """z, a few times over; `fixed`: λ ln ŷ + log p / τ; `graph`: w + wᵀ; `by_labelled`: Σ_s w_si y_s."""
    for _ in range(INNER):
        shares = (fixed + (graph @ shares + by_labelled) / (2 * NEIGHBOURS)).softmax(1)
    return shares


def mixture(given: Given, shares: Float[Tensor, "m k"], gamma: float) -> Mixture:
    """μ and σ², of the pool and the labelled images."""
    pool, labelled = shares / len(given.pool), given.targets
    if len(labelled):
        labelled = labelled * (50 * gamma / len(labelled))
    counts = (pool.sum(0) + labelled.sum(0)).unsqueeze(1)
    sums = pool.T @ given.pool + labelled.T @ given.images
    squares = pool.sum(1) @ given.pool**2 + labelled.sum(1) @ given.images**2
    means = F.normalize(sums / counts.clamp(min=1e-30), dim=1)
    around = squares - 2 * (sums * means).sum(0) + (counts * means**2).sum(0)
    return Mixture(means, (around / counts.sum()).clamp(min=1e-10))


def first_means(given: Given, by_name: Float[Tensor, "m k"]) -> Float[Tensor, "k d"]:
    """Of the labelled images or, without any, of those of the pool that the names are surest of."""
    if len(given.images):
        return F.normalize(given.targets.T @ given.images, dim=1)
    sure, rows = by_name.topk(min(CONFIDENT, len(by_name)), dim=0)
    return F.normalize((sure.unsqueeze(2) * given.pool[rows]).sum(0), dim=1)


def transclip(given: Given, settings: Sequence[tuple[float, float]] = PUBLISHED) -> Found:
    graph = affinity(given.pool, given.pool, itself=True)
    graph = (graph + graph.t()).coalesce()

    def fit(some: Given, setting: tuple[float, float]) -> Found:
        return fit_transclip(some, graph, *setting)

    return fit(given, chosen(given, settings, fit))


def fit_transclip(given: Given, graph: Tensor, temper: float, gamma: float) -> Found:
    """`graph`: w + wᵀ of the pool; `temper`: τ."""
    trust = 0.5 if len(given.images) else 1.0
    by_labelled = given.pool.new_zeros(len(given.pool), len(given.texts))
    if len(given.images):
        by_labelled = affinity(given.images, given.pool, itself=False).t() @ given.targets

    def by_name(images: Tensor) -> Tensor:
        return (given.scale * images @ given.texts.T).log_softmax(1)

    named, width = by_name(given.pool), given.pool.shape[1]
    shares = named.exp()
    model = Mixture(first_means(given, shares), given.pool.new_full((width,), 1 / width))
    for each in range(ROUNDS + 1):
        fixed = trust * named + model.log_densities(given.pool) / temper
        shares = shared(fixed, shares, graph, by_labelled)
        if each < ROUNDS:
            model = mixture(given, shares, gamma)

    def answers(images: Tensor) -> Tensor:
        return (trust * by_name(images) + model.log_densities(images) / temper).softmax(1)

    return Found(shares, answers)


# EM-Dirichlet


def log_dirichlet(logs: Float[Tensor, "b d"], alpha: Float[Tensor, "k d"]) -> Float[Tensor, "b k"]:
    """log Dir(q; α_k), from ln q."""
    return torch.lgamma(alpha.sum(1)) - torch.lgamma(alpha).sum(1) + logs @ (alpha - 1).T


def fit_dirichlets(means: Float[Tensor, "k d"], alpha: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    """α where ψ(α_kd) − ψ(Σ_d α_kd) is the mean of ln q, from another α near it.

    By Newton's steps, the Hessian being a diagonal and one number; bounded by a factor, so that α > 0.
    """
    for _ in range(NEWTON):
        total, before = alpha.sum(1, keepdim=True), alpha
        slope = torch.digamma(total) - torch.digamma(alpha) + means
        diagonal, common = torch.polygamma(1, alpha), torch.polygamma(1, total)
        shift = (slope / diagonal).sum(1, keepdim=True) / (1 / common - (1 / diagonal).sum(1, keepdim=True))
        alpha = (alpha + (slope + shift) / diagonal).clamp(alpha / 5, alpha * 5)
        alpha = alpha * (SUREST / alpha.sum(1, keepdim=True)).clamp(max=1)
        if float((alpha / before - 1).abs().max()) < 1e-9:
            break
    return alpha


def em_dirichlet(given: Given) -> Found:
    return fit_em_dirichlet(given, chosen(given, FLATTER, fit_em_dirichlet))


def fit_em_dirichlet(given: Given, flatter: float, penalty: float = 1.0) -> Found:
    """`flatter`: T, as a share of the scale; `penalty`: ρ."""

    def logs_of(images: Tensor) -> Tensor:
        return ((flatter * given.scale * images @ given.texts.T).softmax(1) + EPSILON).log()

    logs, labelled, classes = logs_of(given.pool), logs_of(given.images), len(given.texts)
    shares, alpha = logs.exp(), torch.ones(classes, classes).double()
    for _ in range(DIRICHLET_ROUNDS):
        counts = shares.sum(0) + given.targets.sum(0)
        means = (shares.T @ logs + given.targets.T @ labelled) / counts.clamp(min=EPSILON).unsqueeze(1)
        has = (counts > EPSILON).unsqueeze(1)
        alpha = torch.where(has, fit_dirichlets(torch.where(has, means, -10.0), alpha), alpha)
        pull = penalty * (shares.mean(0) + EPSILON).log()
        shares = (log_dirichlet(logs, alpha) + pull).softmax(1)
    order = torch.arange(classes) if len(given.images) else matched(shares, logs.exp())

    def answers(images: Tensor) -> Tensor:
        return (log_dirichlet(logs_of(images), alpha) + pull).softmax(1)[:, order]

    return Found(shares[:, order], answers)


def matched(shares: Float[Tensor, "m k"], features: Float[Tensor, "m k"]) -> Int[Tensor, " k"]:
    """Of each class the cluster, so that the mean features of all clusters fit their classes best."""
    own = F.one_hot(shares.argmax(1), shares.shape[1]).to(features)
    means = own.T @ features / own.sum(0).clamp(min=1).unsqueeze(1)
    return torch.from_numpy(linear_sum_assignment(means.T, maximize=True)[1])


# scikit-learn's


def self_training(given: Given) -> Found:
    """Logistic regression, whose C is told by cross-validation on the labelled images."""
    x, y = given.images.numpy(), given.labels.numpy()
    folds = min(3, int(np.bincount(y)[np.bincount(y) > 0].min()))
    plain = LogisticRegression(C=10, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that do not suffice, and of one image per class
        if folds > 1:
            plain.set_params(**GridSearchCV(plain, {"C": STRENGTHS}, cv=folds).fit(x, y).best_params_)
        model = SelfTrainingClassifier(plain).fit(*_together(given))
    return _found(model, given)


def label_spreading(given: Given) -> Found:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of images that no label reaches
        model = LabelSpreading(kernel="knn").fit(*_together(given))
        return _found(model, given)


def _together(given: Given) -> tuple[np.ndarray, np.ndarray]:
    """Labelled images before the pool, whose label is −1."""
    nowhere = np.full(len(given.pool), -1)
    return torch.cat([given.images, given.pool]).numpy(), np.concatenate([given.labels.numpy(), nowhere])


def _found(model: SelfTrainingClassifier | LabelSpreading, given: Given) -> Found:
    """Classes without a label have probability 0; nothing known of an image: all alike."""

    def answers(images: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = torch.from_numpy(model.predict_proba(images.numpy()))
        said = torch.zeros(len(images), len(given.texts)).double()
        said[:, torch.from_numpy(model.classes_)] = told.nan_to_num(0.0)
        return torch.where(said.sum(1, keepdim=True) > 0, said, 1 / len(given.texts))

    return Found(answers(given.pool), answers)


PEERS: dict[str, Callable[[Given], Found]] = {
    "TransCLIP": transclip,
    "TransCLIP, tuned": partial(transclip, settings=TUNED),
    "EM-Dirichlet": em_dirichlet,
    "self-training": self_training,
    "label spreading": label_spreading,
}
BY_NAMES = ("TransCLIP", "TransCLIP, tuned", "EM-Dirichlet")  # they need no label
