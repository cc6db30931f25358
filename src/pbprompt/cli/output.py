"""What the verbs print for programs."""

import json
from typing import Any

from pbprompt.errors import InputError


def print_json(values: Any, indent: int | None = None) -> None:
    """Print one JSON value, at once; JSON has no NaN, so one is refused."""
    try:
        text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError("a figure is no number (NaN or infinite), which JSON cannot say") from None
    print(text, flush=True)
