"""Checks the shapes in the package's signatures while the tests run; wrong types are left to mypy.

Only annotations with a shape (jaxtyping) reach beartype, so that tests may stand a simple object in for
another, and pass the wrong types that the package itself should refuse. A function without any is left as it
is: what jaxtyping puts around all of them takes longer than most of them do. So is a call whose arguments and
result have the shapes and types of one that was checked.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, install_import_hook, jaxtyped
from torch import Tensor, nn

# Triton compiles the source of its kernels, which no wrapper may surround.
UNCHECKED = ("pbprompt.vision.towers.kernels.attention", "pbprompt.vision.towers.kernels.")


def has_shape(hint: Any) -> bool:
    if isinstance(hint, str):  # not evaluated yet: it may name anything
        return "[" in hint
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(has_shape(part) for part in getattr(hint, "__args__", ()))


def shapes_only(function: Callable) -> Callable:
    """What jaxtyping's hook calls with a stand-in of every function, with its annotations."""
    hints = function.__annotations__
    function.__annotations__ = {name: hint if has_shape(hint) else Any for name, hint in hints.items()}
    return beartype(function, conf=BeartypeConf(is_pep484_tower=True))


def where_there_are_shapes(*, typechecker: Callable) -> Callable:
    """What the hook puts before every function and class, instead of jaxtyping's own decorator."""

    def decorate(what: Any) -> Any:
        function = what.__init__ if isinstance(what, type) else what
        if any(map(has_shape, getattr(function, "__annotations__", {}).values())):
            if isinstance(what, type):
                return jaxtyped(what, typechecker=typechecker)
            return once_a_shape(what, typechecker)
        return what

    return decorate


def once_a_shape(function: Callable, typechecker: Callable) -> Callable:
    """Check `function` where its arguments or its result have shapes or types that it was not checked for."""
    checked = jaxtyped(function, typechecker=typechecker)
    described = signature(function)
    parameters = list(described.parameters.values())
    shaped = [at for at, parameter in enumerate(parameters) if has_shape(parameter.annotation)]
    names = frozenset(parameters[at].name for at in shaped)
    returns = form_of if has_shape(described.return_annotation) else lambda result: None
    if any(parameters[at].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for at in shaped):
        return checked
    seen: set[Any] = set()

    @wraps(checked)
    def quick(*given: Any, **named: Any) -> Any:
        asked = (
            len(given),
            *[form_of(given[at]) for at in shaped if at < len(given)],
            *[(name, form_of(value)) for name, value in named.items() if name in names],
        )
        if asked not in seen:
            result = checked(*given, **named)
            seen.update((asked, (asked, returns(result))))
            return result
        result = function(*given, **named)
        said = (asked, returns(result))
        if said not in seen:
            answer = wraps(function)(lambda *_, **__: result)
            jaxtyped(answer, typechecker=typechecker)(*given, **named)
            seen.add(said)
        return result

    return quick


def form_of(value: Any) -> Any:
    """All of a value that a check of shapes looks at."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        return value.dtype, value.shape
    if value is None or kind in (int, float, bool, str):
        return kind
    if isinstance(value, tuple | list):
        return kind, *map(form_of, value)
    if kind is dict:
        return kind, *value, *map(form_of, value.values())
    return object()  # not told at a glance: another each time


def check_shapes(package: str) -> None:
    """From now on, for every module of `package` that is imported."""
    hook = install_import_hook(package, "shape_checks.shapes_only").hook
    jaxtyping.jaxtyped = where_there_are_shapes
    in_package = hook.should_instrument
    hook.should_instrument = lambda name: not name.startswith(UNCHECKED) and in_package(name)
