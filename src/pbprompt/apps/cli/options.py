"""A verb's options as one object: a dataclass whose fields have typer's options as their defaults."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def with_options(kind: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Make a command of a function that takes one object: each field of its class is an option.

    @dataclass(frozen=True, kw_only=True)
    class Greeting:
        name: str = typer.Argument(..., help="Whom to greet.")

    @with_options(Greeting)
    def greet(options: Greeting) -> None: ...

    app.command()(greet)
    """

    def command_of(verb: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(verb)
        def command(**given: Any) -> None:
            verb(kind(**given))

        command.__signature__ = signature(kind)  # type: ignore[attr-defined]
        command.__annotations__ = get_type_hints(kind)
        return command

    return command_of
