"""pbprompt: few-shot image classifiers from CLIP-like models that know what they do not know.

Public names are imported on first use, so that `import pbprompt` and `pbprompt --help` stay instant.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "PromptClassifier": "pbprompt.classifier",
    "load_backbone": "pbprompt.clip.loading.load",
    "TextEngine": "pbprompt.clip.engine",
    "InputError": "pbprompt.errors",
}

__all__ = ["InputError", "PromptClassifier", "TextEngine", "__version__", "load_backbone"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pbprompt' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
