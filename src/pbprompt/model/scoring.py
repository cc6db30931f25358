"""The standard figures of answers, and what other classifiers make of the same training images."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.errors import InputError, needing
from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.evidence.series import held_out
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import Method, MethodConfig, build_method, make_config
from pbprompt.learners.predictive import Predictive
from pbprompt.model.metrics.evaluation import summary
from pbprompt.model.predictor import predict_features, predictive
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
STRENGTHS = [0.1, 1, 10, 100, 1000]  # of logistic regression: C
Groups = Int[Tensor, " n"] | None  # the series of each image; None: each is by itself
MOST_PRODUCTS = 40_000_000  # images × classes × dimensions up to which the probe takes some seconds


def score(answers: Predictive, features: Features) -> dict[str, float]:
    """The standard figures of answers on labelled images."""
    return summary(log_probabilities(answers), features.labels.cpu())


def log_probabilities(answers: Predictive) -> Float[Tensor, "n c"]:
    """Finite, however sure and wrong the model is."""
    return answers.probabilities.double().cpu().clamp_min(torch.finfo(torch.float32).tiny).log()


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
        config, device = self.config or make_config(self.kind), self.backbone.device
        method = build_method(self.kind, config, self.backbone, self.seed, self.classes, self.template)
        assert isinstance(method, Memory)
        unlabelled = self.unlabelled if isinstance(method, TakesUnlabelled) else None
        groups, pool = (None if one is None else one.to(device) for one in (groups, unlabelled))
        here = train.to(device)
        method.begin(here.images, here.labels, groups=groups, unlabelled=pool)
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
        answers = Predictive.concatenate([self.answers(*_parted(images, held, groups)) for held in folds])
        rows = torch.cat([held.nonzero().flatten() for held in folds])
        order = rows.argsort()
        return rows[order], answers.mapped(lambda values: values[order.to(values.device)])


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
    test: Features | None,
    seed: int,
    names: Iterable[str] = RIVALS,
    groups: Groups = None,
    template: str = "{}",
) -> dict[str, dict[str, float]]:
    """The standard figures of cheap methods fitted to the same training images, on test images.

    Without any, on training images that they were not fitted to: five folds, the same for all, of whole
    series (`groups`); the best by likelihood comes first. Without the probe where it takes long, and empty
    where a class has no training image, or nothing can be left out.
    """
    if set(train.labels.tolist()) != set(range(len(classes))):
        return {}
    quick = probe_is_quick(len(train), len(classes), backbone.embed_dim)
    found = {}
    for name in names:
        fit = Fit(find_method(name), backbone, classes, template, seed)
        if name == "linear-probe" and not quick:
            continue
        if test is not None:
            found[name] = score(fit.answers(train, test, groups), test)
        elif (left_out := fit.on_folds(train, groups)) is not None:
            rows, answers = left_out
            found[name] = score(answers, train.subset(rows))
    return found if test is not None else dict(sorted(found.items(), key=lambda pair: pair[1]["nll"]))


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
        raise InputError(
            "--against: a class has too few training images, so that nothing can be left out: fit to four or "
            "more of each class"
        )
    inner = [held_out(part.labels.cpu(), own) for part, _, own in parts]
    if not all(inner):
        raise InputError(
            "--against: a class has too few series, so that nothing can be left out: fit to photographs of "
            "more series of each class"
        )
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
    if fewest <= len(counts[0]):  # it takes more images than there are classes
        del searched["LDA (shrinkage)"]
    for name, (kind, grid, by) in searched.items():
        logs = []
        for (part, new, _), folds in zip(parts, inner, strict=True):
            x, new_x = (unit(one.global_.float()).cpu().double().numpy() for one in (part, new))
            y = part.labels.cpu().numpy()
            cv = [(np.flatnonzero(~held), np.flatnonzero(held)) for held in folds]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of fits that stop early, and folds without a rare class
                best = GridSearchCV(kind, grid, cv=cv, scoring=by).fit(x, y).best_estimator_
                if isinstance(best, SVC):
                    best = best.set_params(probability=True).fit(x, y)
                shares = np.clip(best.predict_proba(new_x), 1e-38, 1)
            logs.append(torch.from_numpy(np.log(shares / shares.sum(1, keepdims=True))))
        yield name, summary(torch.cat(logs), torch.cat([new.labels.cpu() for _, new, _ in parts]))
