"""What the plainest classifiers make of the same training images: whether tuning bought anything.

The class mean and the linear probe need no text and no settings; on frozen features they take moments, unless
there are many images of many classes.
"""

from pbprompt.data.items import Dataset
from pbprompt.features.bank import Features
from pbprompt.methods.base import make_config
from pbprompt.model.predictor import predictive
from pbprompt.model.scoring import score
from pbprompt.registry import find_method
from pbprompt.train.tune import Bank, tune

RIVALS = {"nearest-mean": "class mean", "linear-probe": "linear probe"}
MOST_PRODUCTS = 12_000_000  # images × classes × dimensions up to which the probe takes a second or two


def rival_figures(
    few: Dataset, bank: Bank, test: Features, seed: int, own: str = ""
) -> dict[str, dict[str, float]]:
    """The standard figures of each rival but a model's `own` method, fitted to a draw's training images.

    Without the probe where it takes long, and none at all where a class has no training image.
    """
    if {item.label for item in few.train} != set(range(len(few.classes))):
        return {}
    wanted = [name for name in RIVALS if name != own]
    if not probe_is_quick(few, bank):
        wanted = [name for name in wanted if name != "linear-probe"]
    found = {}
    for name in wanted:
        kind = find_method(name)
        method, _ = tune(few, bank, kind, make_config(kind), seed=seed, progress=False)
        found[name] = score(predictive(method), test)
    return found


def probe_is_quick(few: Dataset, bank: Bank) -> bool:
    """Whether the linear probe, with its cross-validation, is fitted in moments."""
    return len(few.train) * len(few.classes) * bank.backbone.embed_dim <= MOST_PRODUCTS
