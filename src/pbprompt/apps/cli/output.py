"""What the verbs print, for programs and beside their output for people, and how they refuse options."""

import gc
import itertools
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
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
    """A path as it is typed, but for what a terminal would obey."""
    return shlex.quote(as_text(str(path)))


def next_step(command: str, why: str = "") -> None:
    """The command that goes on from here, on standard error."""
    print(f"next: {command}{f'   # {why}' if why else ''}", file=sys.stderr)


def tell(message: object) -> None:
    """A line for people, on standard error."""
    print(f"pbprompt: {shown(message)}", file=sys.stderr)


def screen() -> Console:
    """As wide as the terminal; a file or a pipe has none to fit."""
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fits else 200)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    *,
    paths: Collection[str] = (),
    pad_edge: bool = True,
    console: Console | None = None,
) -> None:
    """Cells are text as it is, which folds where the terminal is narrow: nothing is cut or marked up. Only
    columns of `paths` leave folders out, in front, for the names of files to stand whole."""
    console = console or screen()
    cells = [[cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row] for row in rows]
    wide = [_widest(name, cells, at) for at, name in enumerate(columns)]
    over = sum(wide) + 2 * len(wide) - (0 if pad_edge else 2) - console.width
    for at, name in enumerate(columns):
        if name in paths and over > 0:
            lines = [row[at].plain.split("\n") for row in cells]
            least = max(cell_len(_shorter(line, 0)) for line in itertools.chain(*lines))
            room = wide[at] - over if wide[at] - over >= least else console.width // 2  # then others fold
            for row, each in zip(cells, lines, strict=True):
                row[at] = Text("\n".join(_shorter(path, room) for path in each))
            over -= wide[at] - (now := _widest(name, cells, at))
            wide[at] = now
    heads = [
        Column(
            name,
            overflow="fold",
            justify="right" if name in right else "left",
            no_wrap=name in right or name in paths,
        )
        for name in columns
    ]
    whole = sum(of + 2 for of, head in zip(wide, heads, strict=True) if head.no_wrap)
    least = whole + sum(min(of, 8) + 2 for of, head in zip(wide, heads, strict=True) if not head.no_wrap)
    table = Table(*heads, box=None, pad_edge=pad_edge)
    for row in cells:
        table.add_row(*row)
    (Console(width=least) if paths and least > console.width else console).print(table)


def _widest(head: str, cells: Sequence[Sequence[Text]], column: int) -> int:
    lines = (line for row in cells if column < len(row) for line in row[column].plain.split("\n"))
    return max(map(cell_len, (head, *lines)))


def _shorter(path: str, room: int) -> str:
    """The path without as many folders in front as it takes; the name stays whole."""
    parts = path.split("/")
    while len(parts) > 1 and cell_len(path) > room:
        del parts[0]
        path = "/".join(("…", *parts))
    return path


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse the options that were given and mean nothing here: `options` has those that were not as None."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}: {why}: leave it out")
