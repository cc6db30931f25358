"""pbprompt: few-shot image classifiers from CLIP-like models that know what they do not know.

The names below are the stable ones (docs/api.md). They are imported on first use, so that `import pbprompt`
and `pbprompt --help` stay instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbprompt.apps.audit.audit import look as look
    from pbprompt.apps.classifier import EvidenceClassifier as EvidenceClassifier
    from pbprompt.apps.classifier import PromptClassifier as PromptClassifier
    from pbprompt.apps.export import export_onnx as export_onnx
    from pbprompt.apps.labelling.next_images import next_images as next_images
    from pbprompt.errors import InputError as InputError
    from pbprompt.learners.method import Method as Method
    from pbprompt.learners.method import MethodConfig as MethodConfig
    from pbprompt.learners.method import setting as setting
    from pbprompt.learners.predictive import Prediction as Prediction
    from pbprompt.learners.predictive import Predictive as Predictive
    from pbprompt.learners.trained import Trained as Trained
    from pbprompt.model.tuned import TunedModel as TunedModel
    from pbprompt.registry import register as register
    from pbprompt.vision.images.sources import open_dataset as open_dataset
    from pbprompt.vision.towers.engine import TextEngine as TextEngine
    from pbprompt.vision.towers.loading.load import load_backbone as load_backbone

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "EvidenceClassifier": "pbprompt.apps.classifier",
    "InputError": "pbprompt.errors",
    "Method": "pbprompt.learners.method",
    "MethodConfig": "pbprompt.learners.method",
    "Prediction": "pbprompt.learners.predictive",
    "Predictive": "pbprompt.learners.predictive",
    "PromptClassifier": "pbprompt.apps.classifier",
    "Trained": "pbprompt.learners.trained",
    "TextEngine": "pbprompt.vision.towers.engine",
    "TunedModel": "pbprompt.model.tuned",
    "export_onnx": "pbprompt.apps.export",
    "load_backbone": "pbprompt.vision.towers.loading.load",
    "look": "pbprompt.apps.audit.audit",
    "next_images": "pbprompt.apps.labelling.next_images",
    "open_dataset": "pbprompt.vision.images.sources",
    "register": "pbprompt.registry",
    "setting": "pbprompt.learners.method",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pbprompt' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
