"""`check_method`: what every method must do, whoever wrote it.

    from pbprompt.testing import check_method
    check_method("my-method")                          # an AssertionError says what is wrong, if anything is

Under pytest, `method_checks()` gives one test per behaviour (docs/add-a-method.md). Settings given by name
are those to check it with: a method whose published start is slow may be shown to learn from another. All it
takes is in the package: the sample set, `lite`, and tiny towers of random weights.
"""

from typing import Any

from pbprompt.learners.method import Method
from pbprompt.registry import find_method
from pbprompt.testing.behaviours import CHECKS, Check


def check_method(method: str | type[Method], **settings: Any) -> None:
    """Run every check; the first behaviour that a method lacks is raised as an AssertionError.

    Args:
        method: a registered method's name, or its class.
        settings: those of the method's config to check it with, by name.
    """
    kind = find_method(method) if isinstance(method, str) else method
    for check in CHECKS:
        check(kind, **settings)


def method_checks() -> tuple[Check, ...]:
    """The checks, each to be called with a method's class and settings; its name says what it looks at."""
    return tuple(CHECKS)
