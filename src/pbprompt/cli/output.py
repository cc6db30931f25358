"""What the verbs print, for programs and beside their output for people, and how they refuse options."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from pbprompt.errors import InputError


def print_json(values: Any, indent: int | None = None) -> None:
    """Print one JSON value, at once; JSON has no NaN, so one is refused."""
    try:
        text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError("a figure is NaN or infinite, which JSON cannot say") from None
    print(text, flush=True)


def tell(message: object) -> None:
    """A line for people, on standard error."""
    print(f"pbprompt: {message}", file=sys.stderr)


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse the options that were given and mean nothing here: `options` has those that were not as None."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}: {why}: leave it out")
