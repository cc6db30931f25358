"""Evidence of batches, in one pass."""

from pbprompt.evidence.evidence import Evidence, Gathering


def gather(batches, width: int, classes: int | None = None) -> Evidence:
    gathering = Gathering(width)
    for features, labels in batches:
        gathering.add(features, labels)
    return gathering.evidence(classes)
