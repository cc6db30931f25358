"""Errors and warnings that speak to the person who ran the command."""

import difflib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_MESSAGE = 500
OBEYED = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"  # by a terminal, instead of being shown
CONTROL = re.compile(f"[{OBEYED}]")
SHOWN = 40  # known words, where none is near


def one_line(message: str) -> str:
    """Without line breaks, its middle left out where it is very long."""
    line = " ".join(message.split()) if len(message.splitlines()) > 1 else message.strip()
    line = CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)  # which a terminal would obey
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:300]} … {line[-150:]}"


def first_line(error: BaseException) -> str:
    """What another library's error or the system's says, as a part of our sentence."""
    said = getattr(error, "strerror", None) or str(error)
    return (said.splitlines() or [type(error).__name__])[0][:120]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like it, if any is; case does not matter."""
    words = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=cutoff)
    return words[near[0]] if near else None


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a message: the nearest known word, or what is known."""
    names = list(known)
    if near := nearest(word, names):
        return f"did you mean {near!r}?"
    return f"known are {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line: the file, the field and the fix.

    The command line prints it without a traceback and exits with code 2.

    Example:
        >>> try:
        ...     open_dataset("no-such-folder/")
        ... except InputError as error:
        ...     print(str(error).partition(":")[0])
        no-such-folder
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class NoNumberError(InputError):
    """A model answers NaN: its weights, or its towers', are damaged or overflow."""


class BrokenInstallError(RuntimeError):
    """Something that came with the package is missing or damaged."""


def warn_in_sentences() -> None:
    """From here on this process prints a warning as one line, and says whose it is if not ours."""

    def show(message: Warning | str, category: type[Warning], filename: str, *_: object) -> None:
        folders = Path(filename).parts
        at = folders.index("site-packages") + 1 if "site-packages" in folders[:-1] else -1
        package = Path(folders[at]).stem
        whose = "" if "pbprompt" in folders else f"{package} warns: "
        print(f"pbprompt: {one_line(whose + str(message))}", file=sys.stderr)

    warnings.showwarning = show  # type: ignore[assignment]


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Around imports of what an extra brings: where it is missing, `what` needs it, and how to install it."""
    try:
        yield
    except ImportError:
        raise InputError(f"{what}: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """What installs an extra here: from the checkout or the file that the package came from.

    The package is on no index, so that its name alone finds nothing.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # a tenth of what a small process loads

    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e '{checkout}[{extra}]'"
    try:
        origin = json.loads(distribution("pbprompt").read_text("direct_url.json") or "{}").get("url")
    except (PackageNotFoundError, ValueError):
        origin = None
    return f"pip install 'pbprompt[{extra}] @ {origin or 'file:///PATH/TO/THE.whl'}'"
