"""What the verbs print, for programs and beside their output for people."""

import gc
import json
import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
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
    note(f"next: {command}{f'   # {why}' if why else ''}")


def note(message: object) -> None:
    """A line on what was done, on standard error."""
    print(message, file=sys.stderr)


def tell(message: object) -> None:
    """A line on what to mind, on standard error."""
    note(f"pbprompt: {shown(message)}")


def screen() -> Console:
    """As wide as the terminal; a file or a pipe has none to fit."""
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fits else 200)


class _Paths:
    """A cell whose paths leave folders out, in front, where there is no room: names of files stand whole."""

    def __init__(self, cell: object) -> None:
        self.paths = shown(cell).split("\n")
        self.least = max(cell_len(_shorter(path, 0)) for path in self.paths)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.least, max(map(cell_len, self.paths)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = (_shorter(path, options.max_width) for path in self.paths)
        yield Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _shorter(path: str, room: int) -> str:
    parts = path.split("/")
    while len(parts) > 1 and cell_len(path) > room:
        del parts[0]
        path = "/".join(("…", *parts))
    return path


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Collection[str] = (),
    *,
    paths: Collection[str] = (),
    console: Console | None = None,
) -> None:
    """Cells are text as it is, which folds where the terminal is narrow: nothing is cut or marked up."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        justify: Literal["right", "left"] = "right" if name in right else "left"
        table.add_column(name, overflow="fold", justify=justify, no_wrap=name in right)
    for row in rows:
        cells: list[Text | _Paths] = [c if isinstance(c, Text) else Text(shown(c)) for c in row]
        for at, column in enumerate(table.columns):
            if column.header in paths:
                cells[at] = cell = _Paths(row[at])
                column.min_width = max(column.min_width or 0, cell.least)
        table.add_row(*cells)
    (console or screen()).print(table, crop=False)
