"""A dataset without the images that cannot be read, which are named."""

from dataclasses import replace

from pbprompt.errors import InputError
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.items import SPLITS, Dataset


def without_unreadable(dataset: Dataset, bank: FeatureBank) -> tuple[Dataset, dict[str, InputError]]:
    """The dataset without them, and why each cannot be read; the features of the others are kept."""
    failures: dict[str, InputError] = {}
    bank.encode(dataset.root, dataset.items, failures)
    if not failures:
        return dataset, {}
    train, val, test = (
        tuple(item for item in dataset.split(name) if item.path not in failures) for name in SPLITS
    )
    skipped = (*dataset.skipped, *((path, "unreadable") for path in failures))
    return replace(dataset, train=train, val=val, test=test, skipped=skipped), failures
