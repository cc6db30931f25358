"""Options that several verbs have, each declared once; a verb's options as one object, and refused."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from pbprompt.errors import InputError

Options = TypeVar("Options")

# What few need stands in a part of the help of its own.
advanced: Any = partial(typer.Option, rich_help_panel="Advanced")

MODEL = typer.Argument(..., help="A folder that `pbprompt fit` wrote.")
BY_MODEL = typer.Option(..., "--model", help="A folder that `pbprompt fit` wrote.")
DATA = typer.Argument(..., help="A folder, table or split file; or a benchmark's name with --root.")
NAMES = typer.Option(
    None, "--names", "--classes-file", help="Names to read, by label: what prompts call a class."
)
LOOKED_AT = typer.Option(
    [], "--class", help="A class to look at, also one new to the model; may be repeated. [all]"
)
BACKBONE = advanced(
    [], help="Where the model's backbone is now, if it has moved; of several repeated, in their order."
)
ACTIVATION = advanced(None, help="quick_gelu or gelu, for weights that do not tell.")
DEVICE = advanced("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
SAMPLES = advanced(20, min=1, help="Prompts sampled for each class.")
SAMPLES_SHOWN = typer.Option(4, min=1, help="Sampled prompts to show of each class.")
SEED = advanced(0, help="Seed of the sampled prompts.")
ROOT = advanced(None, help="Where the benchmarks are (or $PBPROMPT_DATA).")
RAY_ADDRESS = advanced(None, help="A running cluster (default: one is started here).")
COSTS = advanced(
    None,
    help="Answer by what costs least: a table `class,answer,cost` of wrong answers that cost not 1; * is "
    "any, and `unsure` an answer.",
)
CLASS_MIX = "How often classes come: as-trained, balanced, or a file of lines `class: number`."
ALLOW_URLS = advanced(
    False, "--allow-urls", help="Fetch what addresses name: http, https, and with extras s3, gs, …"
)


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


def given_options(options: Any) -> dict[str, str]:
    """Of a verb's options those that are not as they would be if left out: fields, and what is typed."""
    given = {}
    for field in fields(options):
        declared: Any = field.default
        if getattr(options, field.name) != declared.default:
            flag = f"--{field.name.replace('_', '-')}"
            given[field.name] = next(iter(declared.param_decls or ()), flag)
    return given


def refuse(options: object, names: str, why: str, remedy: str = "") -> None:
    """Refuse those of a verb's options that were given and mean nothing here; `names`: fields, by blanks."""
    given = given_options(options)
    for name in names.split():
        if name in given:
            raise InputError(f"{given[name]}: {why}: {f'{remedy}, or ' if remedy else ''}leave it out")


def refuse_first(*cases: tuple[object, str]) -> None:
    """Of pairs of what contradicts itself and what is wrong with it: refuse the first that holds."""
    for holds, message in cases:
        if holds:
            raise InputError(message)


def check_suffix(flag: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file to write whose name does not say its format."""
    if path is not None and (path.suffix.lower() not in suffixes or path.is_dir()):
        raise InputError(f"{flag} {path}: give the name of a file that ends in {' or '.join(suffixes)}")
