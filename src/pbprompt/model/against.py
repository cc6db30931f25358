"""What scikit-learn's users would take instead, on the same features of the same training images.

Settings are chosen by five-fold cross-validation within the training images, by likelihood where a classifier
has probabilities of its own; those of the support vector machine are Platt's.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pbprompt.core.likelihood import unit
from pbprompt.errors import InputError, needing
from pbprompt.evaluate.metrics import summary
from pbprompt.features.bank import Features


def against(train: Features, test: Features, seed: int = 1) -> Iterator[tuple[str, dict[str, float]]]:
    """Each classifier's name and its standard figures, as they are made."""
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
