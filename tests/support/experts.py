"""Short ways to the experts of one backbone."""

import torch

from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.expert import Expert, Photographs, Seen
from pbprompt.evidence.posterior import Posterior


def photographs(images, labels, texts, scale: float, weights=None) -> Photographs:
    """As they are: those that are kept in float32 have a length of not quite 1."""
    statistics, kept = Evidence.of(images, labels, len(texts), weights)
    return Photographs.of(statistics, kept._replace(images=images), texts, scale)


def expert(posterior: Posterior, name: str) -> Expert:
    return posterior.views[0].experts[name]


def scores(posterior: Posterior, images: torch.Tensor) -> torch.Tensor:
    return posterior.scores(Seen(images))
