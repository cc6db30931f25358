"""Checks the shapes in the package's signatures while the tests run; wrong types are left to mypy.

Only annotations with a shape (jaxtyping) reach beartype, so that tests may stand a simple object in for
another, and pass the wrong types that the package itself should refuse. A function without any is left as it
is: what jaxtyping puts around all of them takes longer than most of them do.
"""

from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, install_import_hook, jaxtyped

# Triton compiles the source of its kernels, which no wrapper may surround.
UNCHECKED = ("pbprompt.clip.block_kernels", "pbprompt.clip.packed_kernels", "pbprompt.core.gpu.")


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
            return jaxtyped(what, typechecker=typechecker)
        return what

    return decorate


def check_shapes(package: str) -> None:
    """From now on, for every module of `package` that is imported."""
    hook = install_import_hook(package, "shape_checks.shapes_only").hook
    jaxtyping.jaxtyped = where_there_are_shapes
    in_package = hook.should_instrument
    hook.should_instrument = lambda name: not name.startswith(UNCHECKED) and in_package(name)
