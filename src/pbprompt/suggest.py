"""The end of an error message: what the user may have meant."""

import difflib
from collections.abc import Iterable

SHOWN = 40  # known words, where none is near


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like it, if any is; case does not matter."""
    words = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=cutoff)
    return words[near[0]] if near else None


def suggest(word: str, known: Iterable[str]) -> str:
    """The nearest known word, or what is known."""
    names = list(known)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known are {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"
