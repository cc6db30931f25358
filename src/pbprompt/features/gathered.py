"""The labelled images of a stream as evidence: one pass over them, in parts that add up.

    units ──▶ records to learn from ──▶ features ──▶ sums of all, and some of them (`core/evidence.py`)

A part is some units; another process or machine may gather it, since units can be pickled and so can what is
gathered. Nothing of a stream is held but what is being encoded, one block of features, and the evidence.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple, Self

import torch

from pbprompt.clip.backbone import Backbone
from pbprompt.core.evidence import Evidence, Gathering
from pbprompt.data.stream import Record, Unit
from pbprompt.errors import InputError
from pbprompt.features.encode import default_batch
from pbprompt.features.streaming import decoders_for, encode_stream

TOLD = 5  # images that could not be read are told with the reason; the others are counted


class Gathered(NamedTuple):
    """What a pass found: labels as the source has them, in the order they were met, and the evidence."""

    keys: tuple[str, ...]
    evidence: Evidence
    images: int
    other_splits: int
    """images of val or test, which were not learned from"""
    failed: int
    failures: tuple[str, ...]
    """the first few"""

    def merged(self, other: Self) -> Self:
        """With the images of another part, whose labels may be others or come in another order."""
        keys = tuple(dict.fromkeys((*self.keys, *other.keys)))
        return type(self)(
            keys,
            self.under(keys).merged(other.under(keys)),
            self.images + other.images,
            self.other_splits + other.other_splits,
            self.failed + other.failed,
            (*self.failures, *other.failures)[:TOLD],
        )

    def under(self, keys: Sequence[str]) -> Evidence:
        """The evidence with labels by their places among these."""
        place = {key: at for at, key in enumerate(keys)}
        places = torch.tensor([place[key] for key in self.keys], dtype=torch.long)
        return self.evidence.relabelled(places, len(keys))


def gather_units(
    backbone: Backbone, units: Iterable[Unit], saw: Callable[[int], None] = lambda images: None
) -> Gathered:
    """One pass; `saw` is called with the number of images of each batch."""
    gathering, passed = Gathering(backbone.embed_dim), _Passed()
    labels: dict[str, int] = {}
    failed = 0
    failures: list[str] = []
    with closing(decoders_for(backbone)) as decoders:
        batches = _batches(_learned(units, passed), default_batch(backbone.device))
        for _, found in encode_stream(backbone, batches, decoders):
            failed += len(found.failures)
            failures += [str(error) for error in found.failures.values()][: TOLD - len(failures)]
            own = [
                labels.setdefault(record.label, len(labels))
                for place, record in enumerate(found.records)
                if place not in found.failures
            ]
            gathering.add(found.global_, torch.tensor(own, dtype=torch.long))
            saw(len(found.records))
    evidence = gathering.evidence(len(labels))
    return Gathered(tuple(labels), evidence, gathering.images, passed.records, failed, tuple(failures))


class _Passed:
    """Counts records that are passed over."""

    records = 0


def _learned(units: Iterable[Unit], passed: _Passed) -> Iterator[Record]:
    for unit in units:
        for record in unit.records():
            if record.split not in ("", "train"):
                passed.records += 1
            elif not record.label:
                raise InputError(
                    f"{record.name} has no label: put each class's images in a folder of its own, or give a "
                    "column `label`, or the tar's .cls files"
                )
            else:
                yield record


def _batches(records: Iterator[Record], size: int) -> Iterator[tuple[None, list[Record]]]:
    while batch := list(islice(records, size)):
        yield None, batch
