"""scikit-learn's contract for an estimator, kept without scikit-learn.

A `Pipeline`, a `GridSearchCV` and `clone` take such a class as one of their own; where scikit-learn is not
installed it works all the same.
"""

import inspect
from typing import Any, Self

from pbprompt.errors import InputError


class NotFittedError(InputError, AttributeError):
    """Asked before it was fitted; as scikit-learn's, it is both kinds of error, so that `hasattr` says no."""


class Estimator:
    """A class whose `__init__` does nothing but keep its parameters, each under its own name.

    Parameters are looked at by `fit`, so that `set_params` may change one after the other.
    """

    @classmethod
    def _parameters(cls) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; none of them has parameters of its own, so `deep` changes nothing."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters, which the next `fit` looks at."""
        known = self._parameters()
        for name in params:
            if name not in known:
                raise InputError(
                    f"Invalid parameter {name!r} for {type(self).__name__}: it has {', '.join(known)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        known = self._parameters()
        shown = {name: repr(value) for name, value in self.get_params().items()}
        changed = [f"{name}={text}" for name, text in shown.items() if text != repr(known[name].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(three_d_array=True),
        )

    def _check_is_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            kind = from_sklearn("NotFittedError", NotFittedError)
            name = type(self).__name__
            raise kind(f"This {name} instance is not fitted yet: call fit, or load one with from_pretrained")


def from_sklearn(name: str, otherwise: type[Any]) -> type[Any]:
    """A class of scikit-learn's exceptions where it is installed, so that its users can catch it."""
    try:
        from sklearn import exceptions
    except ImportError:
        return otherwise
    found: type[Any] = getattr(exceptions, name)
    return found
