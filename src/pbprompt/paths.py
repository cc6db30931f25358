"""Where the library keeps what it can make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$PBPROMPT_CACHE, or pbprompt under $XDG_CACHE_HOME, or ~/.cache/pbprompt."""
    if own := os.environ.get("PBPROMPT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pbprompt"
