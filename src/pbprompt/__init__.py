"""pbprompt: few-shot image classifiers from CLIP-like models that know what they do not know.

The names below are the stable ones (docs/api.md). They are imported on first use, so that `import pbprompt`
and `pbprompt --help` stay instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbprompt.classifier import PromptClassifier as PromptClassifier
    from pbprompt.clip.engine import TextEngine as TextEngine
    from pbprompt.clip.loading.load import load_backbone as load_backbone
    from pbprompt.data.sources import open_dataset as open_dataset
    from pbprompt.errors import InputError as InputError
    from pbprompt.export import export_onnx as export_onnx
    from pbprompt.findings.look import look as look
    from pbprompt.findings.next_images import next_images as next_images
    from pbprompt.methods.base import Method as Method
    from pbprompt.methods.base import MethodConfig as MethodConfig
    from pbprompt.methods.base import setting as setting
    from pbprompt.model.predictions import Prediction as Prediction
    from pbprompt.model.tuned import TunedModel as TunedModel
    from pbprompt.registry import register as register

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "InputError": "pbprompt.errors",
    "Method": "pbprompt.methods.base",
    "MethodConfig": "pbprompt.methods.base",
    "Prediction": "pbprompt.model.predictions",
    "PromptClassifier": "pbprompt.classifier",
    "TextEngine": "pbprompt.clip.engine",
    "TunedModel": "pbprompt.model.tuned",
    "export_onnx": "pbprompt.export",
    "load_backbone": "pbprompt.clip.loading.load",
    "look": "pbprompt.findings.look",
    "next_images": "pbprompt.findings.next_images",
    "open_dataset": "pbprompt.data.sources",
    "register": "pbprompt.registry",
    "setting": "pbprompt.methods.base",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pbprompt' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
