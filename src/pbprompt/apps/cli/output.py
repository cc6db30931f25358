"""What the verbs print, for programs and beside their output for people, and how they refuse options."""

import gc
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pbprompt.errors import InputError
from pbprompt.files import as_text


def print_json(values: Any, indent: int | None = None) -> None:
    """Print one JSON value, at once; JSON has no NaN, so one is refused."""
    try:
        text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError("a figure is NaN or infinite, which JSON cannot say") from None
    print(text, flush=True)


def shown(text: object) -> str:
    """As a terminal may have it: lines of a cell stay, other control characters are written out."""
    return "\n".join(map(as_text, str(text).split("\n")))


@contextmanager
def importing() -> Iterator[None]:
    """For the imports of a verb: what torch's makes is for good, and no search for garbage looks at it."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quote(path: object) -> str:
    """A path as it is typed."""
    return shlex.quote(str(path))


def next_step(command: str, why: str = "") -> None:
    """The command that goes on from here, on standard error."""
    print(f"next: {command}{f'   # {why}' if why else ''}", file=sys.stderr)


def tell(message: object) -> None:
    """A line for people, on standard error."""
    print(f"pbprompt: {shown(message)}", file=sys.stderr)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    *,
    pad_edge: bool = True,
    console: Console | None = None,
) -> None:
    """Cells are text as it is, which folds where the terminal is narrow: nothing is cut or marked up."""
    heads = [Column(name, overflow="fold", justify="right" if name in right else "left") for name in columns]
    table = Table(*heads, box=None, pad_edge=pad_edge)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row))
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ  # a file or a pipe has no screen to fit
    (console or Console(width=None if fits else 200)).print(table)


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse the options that were given and mean nothing here: `options` has those that were not as None."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}: {why}: leave it out")
