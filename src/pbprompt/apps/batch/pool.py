"""Images without a label, from wherever predictions come from: a folder, a table, shards, addresses.

Of more than 65,536 those with the least keys stand for all (`evidence/evidence.py`): memory does not grow
with them, and which they are depends on nothing but the images.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.apps.batch.job import batches, encoder
from pbprompt.apps.batch.output import Todo
from pbprompt.errors import InputError
from pbprompt.evidence.evidence import feature_keys, unit_features
from pbprompt.evidence.unlabelled import SEEN
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Backbone, Encoded

SAME = 1 - 1e-5  # cosine of two copies of an image
PARTS = 4096  # batches that are joined at once


class Pool(NamedTuple):
    """Features of length 1, and what each image is called."""

    names: list[str]
    images: Float[Tensor, "m d"]
    read: int
    """images in all"""
    failures: list[str]

    @property
    def encoded(self) -> Encoded:
        """As a model takes images; of patches there are none."""
        return Encoded(self.images, self.images.new_zeros(len(self.images), 0, self.images.shape[1]))

    def kept(self, rows: Bool[Tensor, " m"]) -> Self:
        names = [name for name, keep in zip(self.names, rows.tolist(), strict=True) if keep]
        return self._replace(names=names, images=self.images[rows])

    def copies(self, images: Float[Tensor, "n d"]) -> Bool[Tensor, " m"]:
        """Which of them are among these images too."""
        others, found = unit_features(images.cpu().float()), torch.zeros(len(self.images), dtype=torch.bool)
        for at in range(0, len(others), 4096):
            found |= (self.images @ others[at : at + 4096].T).amax(1) > SAME
        return found

    @classmethod
    def joined(cls, parts: "Sequence[Self]") -> Self:
        """All of few; of many those with the least keys."""
        names = [name for part in parts for name in part.names]
        images = torch.cat([part.images for part in parts])
        failures = [failure for part in parts for failure in part.failures]
        every = cls(names, images, sum(part.read for part in parts), failures)
        if len(names) <= SEEN:
            return every
        rows = torch.zeros(len(names), dtype=torch.bool)
        rows[feature_keys(images).argsort(stable=True)[:SEEN]] = True
        return every.kept(rows)


def read_pool(backbone: Backbone, stream: Stream, *, bare: bool = False, progress: bool = True) -> Pool:
    """One pass over a stream; what cannot be read is told, and left out. `bare`: without what has a label."""
    rank, size = distributed.world()
    parts = [Pool([], torch.empty(0, backbone.embed_dim), 0, [])]
    shown = Progress("encoding unlabelled images", shown=progress and distributed.is_main())
    with encoder(backbone, stream) as encode, shown:
        shown.expect(None)
        mine = (Todo(at, unit) for at, unit in enumerate(stream.units()) if at % size == rank)
        wanted = (
            (mark, [record for record in some if not (bare and record.label)])
            for mark, some in batches(mine, encode.batch)
        )
        for _, some in encode.run((mark, records) for mark, records in wanted if records):
            names = [record.name for at, record in enumerate(some.records) if at not in some.failures]
            failures = [str(error) for error in some.failures.values()]
            parts.append(Pool(names, unit_features(some.global_.cpu()).float(), len(some.records), failures))
            if len(parts) > PARTS:
                parts = [Pool.joined(parts)]
            shown.advance(len(some.records))
    found = Pool.joined(distributed.gather_objects(Pool.joined(parts)))
    if not found.names:
        why = f": {found.failures[0]}" if found.failures else ": no images in it"
        raise InputError(f"{', '.join(stream.names)}{why}")
    return found
