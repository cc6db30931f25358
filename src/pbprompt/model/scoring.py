"""A tuned model on a split: the standard figures, beside those of zero-shot and of plain classifiers."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError, needing
from pbprompt.evidence.rivals.linear import held_out
from pbprompt.learners.method import build_method, make_config
from pbprompt.learners.predictive import Predictive, rounded
from pbprompt.model.metrics.conformal import ByDifficulty, prediction_sets
from pbprompt.model.metrics.metrics import summary
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


def rival_figures(
    backbone: Backbone, classes: Sequence[str], train: Features, test: Features, seed: int, own: str = ""
) -> dict[str, dict[str, float]]:
    """The standard figures of each rival but a model's `own` method, fitted to its training images."""
    names = [name for name in _able(RIVALS, backbone, classes, train) if name != own]
    return {name: fitted_figures(name, backbone, classes, "{}", [(train, test)], seed) for name in names}


def leaderboard(
    backbone: Backbone, classes: Sequence[str], template: str, train: Features, seed: int
) -> dict[str, dict[str, float]]:
    """The standard figures of each cheap method, on training images that it was not fitted to: five folds,
    the same for all. The best by likelihood comes first; empty where no class has two images.
    """
    folds = [
        (train.subset((~held).nonzero().flatten()), train.subset(held.nonzero().flatten()))
        for held in held_out(train.labels.cpu())
    ]
    names = _able(CHEAP, backbone, classes, train) if folds else []
    found = {name: fitted_figures(name, backbone, classes, template, folds, seed) for name in names}
    return dict(sorted(found.items(), key=lambda pair: pair[1]["nll"]))


def _able(names: Iterable[str], backbone: Backbone, classes: Sequence[str], train: Features) -> list[str]:
    """Without the probe where it takes long, and none at all where a class has no training image."""
    if set(train.labels.tolist()) != set(range(len(classes))):
        return []
    quick = probe_is_quick(len(train), len(classes), backbone.embed_dim)
    return [name for name in names if quick or name != "linear-probe"]


def fitted_figures(
    name: str,
    backbone: Backbone,
    classes: Sequence[str],
    template: str,
    folds: Sequence[tuple[Features, Features]],
    seed: int,
) -> dict[str, float]:
    """Of a method that takes no steps, with its own settings: fitted to the first of each pair, asked about
    the second."""
    kind, said = find_method(name), []
    for train, test in folds:
        method = build_method(kind, make_config(kind), backbone, seed)
        method.prepare(classes, template)
        here = train.to(backbone.device)
        method.begin(here.images, here.labels, seed)
        method.finish()
        said.append(log_probabilities(predict_features(predictive(method), test)))
    return summary(torch.cat(said), torch.cat([test.labels.cpu() for _, test in folds]))


def probe_is_quick(images: int, classes: int, width: int) -> bool:
    """Whether the linear probe, with its cross-validation, is fitted in moments."""
    return images * classes * width <= MOST_PRODUCTS


def against(train: Features, test: Features, seed: int = 1) -> Iterator[tuple[str, dict[str, float]]]:
    """What scikit-learn's users would take instead: each classifier's name and its figures, as they are made.

    Settings are chosen by five-fold cross-validation within the training images, by likelihood where a
    classifier has probabilities of its own; those of the support vector machine are Platt's.
    """
    with needing("--against needs scikit-learn", "against"):
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.svm import SVC
    x, new = (unit(part.global_.float()).cpu().double().numpy() for part in (train, test))
    y, labels = train.labels.cpu().numpy(), test.labels.cpu()
    folds = min(5, int(np.bincount(y)[np.bincount(y) > 0].min()))
    if folds < 2 or len(np.unique(y)) <= int(labels.max()):
        raise InputError("--against: a class has fewer than two training images, so nothing can be left out")
    most = len(y) - -(-len(y) // folds)
    strengths = [0.1, 1, 10, 100, 1000]
    searched: dict[str, tuple[Any, dict[str, list[Any]], str]] = {
        "logistic regression (CV)": (LogisticRegression(max_iter=500), {"C": strengths}, "neg_log_loss"),
        "LDA (shrinkage)": (LinearDiscriminantAnalysis(solver="lsqr"), {"shrinkage": ["auto"]}, "accuracy"),
        "k nearest neighbours (CV)": (
            KNeighborsClassifier(weights="distance", metric="cosine"),
            {"n_neighbors": [k for k in (1, 3, 5, 10, 20) if k <= most]},
            "accuracy",
        ),
        "SVM, rbf (CV)": (SVC(random_state=seed), {"C": [1, 10, 100], "gamma": [1, 3]}, "accuracy"),
    }
    for name, (kind, grid, by) in searched.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that stop early, and folds without a rare class
            best = GridSearchCV(kind, grid, cv=folds, scoring=by).fit(x, y).best_estimator_
            if isinstance(best, SVC):
                best = best.set_params(probability=True).fit(x, y)
            said = np.clip(best.predict_proba(new), 1e-38, 1)
        yield name, summary(torch.from_numpy(np.log(said / said.sum(1, keepdims=True))), labels)
