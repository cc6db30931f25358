"""scikit-learn's contract for an estimator, by its own classes where it is installed.

Without it a classifier fits, predicts and is saved all the same; what only scikit-learn's tools ask for
(`get_params`, `set_params`, tags) is not there.
"""

# ruff: noqa: N803 - X is scikit-learn's name
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from pbprompt.errors import InputError

SETTING = "settings__"

try:
    from sklearn.base import BaseEstimator as PlainEstimator
    from sklearn.base import ClassifierMixin
    from sklearn.exceptions import DataConversionWarning, NotFittedError

    class BaseEstimator(PlainEstimator):  # type: ignore[misc]
        """With `settings__epochs` and the like as parameters of their own, which a search can set."""

        settings: Mapping[str, Any] | None

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            known: dict[str, Any] = super().get_params(deep)
            settings = getattr(self, "settings", None)
            own = settings.items() if deep and isinstance(settings, Mapping) else ()
            return known | {SETTING + name: value for name, value in own}

        def set_params(self, **params: Any) -> Self:
            own = {name: value for name, value in params.items() if name.startswith(SETTING)}
            super().set_params(**{name: value for name, value in params.items() if name not in own})
            if own:  # another dict: clones share it
                changed = {name.removeprefix(SETTING): value for name, value in own.items()}
                self.settings = {**(self.settings or {}), **changed}
            return self

except ImportError:
    if not TYPE_CHECKING:

        class BaseEstimator: ...

        class ClassifierMixin: ...

        class DataConversionWarning(UserWarning): ...

        class NotFittedError(InputError, AttributeError):
            """Both kinds of error, as scikit-learn's is, so that `hasattr` says no before `fit`."""


__all__ = ["DataConversionWarning", "Estimator"]


class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A class whose `__init__` does nothing but keep its parameters, each under its own name.

    Parameters are looked at by `fit`, so that `set_params` may change one after the other.
    """

    _loader = "from_pretrained"
    classes_: NDArray[Any]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities [n, c], a column for each of `classes_`."""
        raise NotImplementedError

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest label of each row of X."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose label is predicted, each counting with its weight."""
        right = self.predict(X) == np.ravel(np.asarray(y))
        return float(np.average(right, weights=sample_weight))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """ln p of every class [n, c]; of two classes alone the odds of the second, ln p₂ − ln p₁ [n]."""
        probabilities = self.predict_proba(X)
        log = np.log(np.maximum(probabilities, np.finfo(probabilities.dtype).tiny))
        return log[:, 1] - log[:, 0] if log.shape[1] == 2 else log

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _check_is_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            name = type(self).__name__
            raise NotFittedError(
                f"This {name} instance is not fitted yet: call fit, or load one with {self._loader}"
            )
