"""A tuned model on a split: the standard figures, beside those of zero-shot and of plain classifiers."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.errors import InputError, needing
from pbprompt.evidence.folds import held_out
from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import Method, MethodConfig, build_method, make_config
from pbprompt.learners.predictive import Predictive, rounded
from pbprompt.model.metrics.conformal import ByDifficulty, prediction_sets
from pbprompt.model.metrics.evaluation import summary
from pbprompt.model.predictor import Predictor, predict_features, predictive
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import Features
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone

# What the plainest classifiers make of the same training images: whether tuning bought anything. They need no
# text and no settings; on frozen features they take moments, unless there are many images of many classes.
RIVALS = {
    "nearest-mean": "class mean",
    "nearest-neighbours": "nearest neighbours",
    "linear-probe": "linear probe",
}
CHEAP = ("conjugate", *RIVALS)  # what `auto` chooses from
HARD = 0.25  # share of images that the model is least sure of
STRENGTHS = [0.1, 1, 10, 100, 1000]  # of logistic regression: C
Groups = Int[Tensor, " n"] | None  # the series of each image; None: each is by itself
MOST_PRODUCTS = 40_000_000  # images × classes × dimensions up to which the probe takes some seconds


def score(predictor: Predictor, features: Features) -> dict[str, float]:
    """The standard figures of a predictor on a split."""
    return standard_figures(predict_features(predictor, features), features)


def standard_figures(said: Predictive, features: Features) -> dict[str, float]:
    """The same of what was said already."""
    return summary(log_probabilities(said), features.labels.cpu())


def log_probabilities(said: Predictive) -> Float[Tensor, "n c"]:
    """Finite, however sure and wrong the model is."""
    return said.probabilities.double().cpu().clamp_min(torch.finfo(torch.float32).tiny).log()


def set_figures(
    said: Predictive, features: Features, classes: Sequence[str], coverage: float, quantile: ByDifficulty
) -> dict[str, str | int | float]:
    """How often prediction sets hold the true class, how large they are, and the class that fares worst."""
    shown, labels = np.asarray(rounded(said.probabilities)), features.labels.cpu().numpy()
    likely, top = prediction_sets(shown, quantile), shown.max(1)
    held = likely[np.arange(len(shown)), labels]
    images = np.bincount(labels, minlength=len(classes))
    shares = np.bincount(labels, weights=held, minlength=len(images)) / np.maximum(images, 1)
    worst = int(np.where(images > 0, shares, np.inf).argmin())
    return {
        "asked": coverage,
        "coverage": float(held.mean()),
        "hard_coverage": float(held[top <= np.quantile(top, HARD)].mean()),
        "mean_size": float(likely.sum(1).mean()),
        "worst_class": classes[worst],
        "worst_class_coverage": float(shares[worst]),
        "worst_class_images": int(images[worst]),
    }


@dataclass(frozen=True)
class Fit:
    """How to fit a method that takes no steps, by its own settings unless others are given."""

    kind: type[Method]
    backbone: Backbone
    classes: Sequence[str]
    template: str
    seed: int
    config: MethodConfig | None = None
    unlabelled: Float[Tensor, "m d"] | None = None

    def answers(self, train: Features, test: Features, groups: Groups = None) -> Predictive:
        """What the method, fitted to some images (`groups`: their series), says of others."""
        config = self.config or make_config(self.kind)
        method = build_method(self.kind, config, self.backbone, self.seed, self.classes, self.template)
        assert isinstance(method, Memory)
        if self.unlabelled is not None and isinstance(method, TakesUnlabelled):
            method.beside(self.unlabelled.to(self.backbone.device))
        method.image_groups = None if groups is None else groups.to(self.backbone.device)
        here = train.to(self.backbone.device)
        method.begin(here.images, here.labels, self.seed)
        method.finish()
        return predict_features(predictive(method), test)

    def on_folds(
        self, images: Features, groups: Groups = None
    ) -> tuple[Int[Tensor, " r"], Predictive] | None:
        """Which training images could be left out, and what is said of them when fitted to four fifths.

        Whole series (`groups`) are left out. None where nothing can be: no class has two images, or series.
        """
        folds = held_out(images.labels.cpu(), groups)
        if not folds:
            return None
        said = Predictive.concatenate([self.answers(*_parted(images, held, groups)) for held in folds])
        rows = torch.cat([held.nonzero().flatten() for held in folds])
        order = rows.argsort()
        return rows[order], said.mapped(lambda values: values[order.to(values.device)])


def _parted(
    images: Features, held: Bool[Tensor, " n"], groups: Groups
) -> tuple[Features, Features, Int[Tensor, " m"] | None]:
    """Those to fit to, those held out, and the series of the former."""
    left = images.subset((~held).nonzero().flatten())
    return left, images.subset(held.nonzero().flatten()), None if groups is None else groups[~held]


def rival_figures(
    backbone: Backbone,
    classes: Sequence[str],
    train: Features,
    test: Features,
    seed: int,
    own: str = "",
    groups: Groups = None,
) -> dict[str, dict[str, float]]:
    """The standard figures of each rival but a model's `own` method, fitted to its training images."""
    fits = _able([name for name in RIVALS if name != own], backbone, classes, "{}", train, seed)
    return {name: standard_figures(fit.answers(train, test, groups), test) for name, fit in fits.items()}


def leaderboard(
    backbone: Backbone,
    classes: Sequence[str],
    template: str,
    train: Features,
    seed: int,
    names: Iterable[str] = CHEAP,
    groups: Groups = None,
) -> dict[str, dict[str, float]]:
    """The standard figures of each cheap method, on training images that it was not fitted to: five folds,
    the same for all, of whole series (`groups`). The best by likelihood comes first; empty where no class
    has two images.
    """
    fits = _able(names, backbone, classes, template, train, seed)
    said = {name: found for name, fit in fits.items() if (found := fit.on_folds(train, groups)) is not None}
    figures = {name: standard_figures(told, train.subset(rows)) for name, (rows, told) in said.items()}
    return dict(sorted(figures.items(), key=lambda pair: pair[1]["nll"]))


def _able(
    names: Iterable[str],
    backbone: Backbone,
    classes: Sequence[str],
    template: str,
    train: Features,
    seed: int,
) -> dict[str, Fit]:
    """Without the probe where it takes long, and none at all where a class has no training image."""
    if set(train.labels.tolist()) != set(range(len(classes))):
        return {}
    quick = probe_is_quick(len(train), len(classes), backbone.embed_dim)
    return {
        name: Fit(find_method(name), backbone, classes, template, seed)
        for name in names
        if quick or name != "linear-probe"
    }


def probe_is_quick(images: int, classes: int, width: int) -> bool:
    """Whether the linear probe, with its cross-validation, is fitted in moments."""
    return images * classes * width <= MOST_PRODUCTS


def against(
    train: Features, test: Features | None, seed: int = 1, groups: Groups = None
) -> Iterator[tuple[str, dict[str, float]]]:
    """What scikit-learn's users would take instead: each classifier's name and its figures, as they are made.

    Settings are chosen by five-fold cross-validation within the training images, by likelihood where a
    classifier has probabilities of its own; those of the support vector machine are Platt's. Without test
    images, as `Fit.on_folds` has it: each fifth is judged by a classifier of the other four. All folds are of
    whole series (`groups`), but for those of Platt's.
    """
    with needing("--against needs scikit-learn", "against"):
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import log_loss, make_scorer
        from sklearn.model_selection import GridSearchCV
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC
    folds_of = (_parted(train, held, groups) for held in held_out(train.labels.cpu(), groups))
    parts = [(train, test, groups)] if test is not None else list(folds_of)
    counts = [part.labels.cpu().bincount() for part, *_ in parts]
    most = max(int(new.labels.max()) for _, new, _ in parts) if parts else 0
    if not parts or any(len(count) <= most or int(count.min()) < 2 for count in counts):
        raise InputError("--against: a class has too few training images, so that nothing can be left out")
    inner = [held_out(part.labels.cpu(), own) for part, _, own in parts]
    if not all(inner):
        raise InputError("--against: a class has too few series, so that nothing can be left out")
    fewest = min(int((~held).sum()) for folds in inner for held in folds)
    likelihood = make_scorer(
        log_loss, greater_is_better=False, response_method="predict_proba", labels=list(range(len(counts[0])))
    )
    searched: dict[str, tuple[Any, dict[str, list[Any]], Any]] = {
        "logistic regression (CV)": (LogisticRegression(max_iter=500), {"C": STRENGTHS}, likelihood),
        "LDA (shrinkage)": (LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": ["auto"]}, "accuracy"),
        "k nearest neighbours (CV)": (
            KNeighborsClassifier(weights="distance", metric="cosine"),
            {"n_neighbors": [k for k in (1, 3, 5, 10, 20) if k <= fewest]},
            "accuracy",
        ),
        "SVM, rbf (CV)": (SVC(random_state=seed), {"C": [1, 10, 100], "gamma": [1, 3]}, "accuracy"),
    }
    for name, (kind, grid, by) in searched.items():
        logs = []
        for (part, new, _), folds in zip(parts, inner, strict=True):
            x, asked = (unit(one.global_.float()).cpu().double().numpy() for one in (part, new))
            y = part.labels.cpu().numpy()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of fits that stop early, and folds without a rare class
                cv = [
                    ((~held).nonzero().flatten().numpy(), held.nonzero().flatten().numpy()) for held in folds
                ]
                best = GridSearchCV(kind, grid, cv=cv, scoring=by).fit(x, y).best_estimator_
                if isinstance(best, SVC):
                    best = best.set_params(probability=True).fit(x, y)
                said = np.clip(best.predict_proba(asked), 1e-38, 1)
            logs.append(torch.from_numpy(np.log(said / said.sum(1, keepdims=True))))
        yield name, summary(torch.cat(logs), torch.cat([new.labels.cpu() for _, new, _ in parts]))
