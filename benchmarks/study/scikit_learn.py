"""What scikit-learn's users would run on the same features, as rows of the study.

    pbprompt research reproduce evidence-few-shot.yaml --plugin benchmarks/study/scikit_learn.py …

Logistic regression with C by cross-validation and the likelihood, and linear discriminant analysis with
Ledoit and Wolf's shrinkage. With one image per class nothing can be left out: C is then scikit-learn's own,
and the covariance of the analysis is the identity, which makes it a nearest mean.
"""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from torch import Tensor

from pbprompt.evidence.rivals.linear import LinearClassifier, Present
from pbprompt.registry import register

Floats = NDArray[np.float64]
STRENGTHS = [1, 10, 100, 1000, 10_000]  # with few photographs of a class the best is above 100
FOLDS = 5


class ScikitLearn(LinearClassifier):
    """One of scikit-learn's linear classifiers."""

    needs_text = False
    takes_new_names = False
    paper = "Pedregosa et al., JMLR 2011"

    def solve(self, given: Present) -> tuple[Tensor, Tensor, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that stop early
            weights, bias = self.solved(given.x.double().numpy(), given.labels.numpy())
        if len(weights) == 1:  # of two classes, the second's
            weights, bias = np.stack([0 * weights[0], weights[0]]), np.array([0.0, bias[0]])
        return torch.from_numpy(weights), torch.from_numpy(bias), torch.zeros(len(bias))

    def solved(self, x: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Weights and bias."""
        raise NotImplementedError


@register("sklearn-logistic")
class Logistic(ScikitLearn):
    """Logistic regression, C by cross-validation."""

    def solved(self, x: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
        folds = min(FOLDS, int(np.bincount(y).min()))
        best = LogisticRegression(max_iter=500)
        if folds > 1:
            best = (
                GridSearchCV(best, {"C": STRENGTHS}, cv=folds, scoring="neg_log_loss")
                .fit(x, y)
                .best_estimator_
            )
        else:
            best = best.fit(x, y)
        return best.coef_, best.intercept_


@register("sklearn-lda")
class LDA(ScikitLearn):
    """Linear discriminant analysis with shrinkage."""

    def solved(self, x: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
        if np.bincount(y).max() == 1:
            means = x[np.argsort(y)]
            return means, -0.5 * (means**2).sum(1)
        found = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
        return found.coef_, found.intercept_
