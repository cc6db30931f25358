"""The labelled images of a stream as evidence: one pass over them, in parts that add up.

    units ──▶ records to learn from ──▶ features ──▶ sums of all, and some of them (`evidence/evidence.py`)

A part is some units; another process or machine may gather it, since units can be pickled and so can what is
gathered. Nothing of a stream is held but what is being encoded, one block of features, and the evidence.

A pass that was ended goes on from its checkpoint. It is written between two batches, with the features that
wait for their block to be full: so batches and blocks are those of a pass that nothing ended, and so are the
bits of the sums.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Self

import torch

from pbprompt.errors import InputError
from pbprompt.evidence.evidence import Evidence, Gathering
from pbprompt.vision.features.checkpoint import Checkpoint, State, unusable
from pbprompt.vision.features.encode import Encoding, decoder_for, default_batch, encode_records
from pbprompt.vision.images.stream import Record, Unit
from pbprompt.vision.towers.backbone import Backbone

NAMED = 5  # images that could not be read are named with the reason; the others are counted


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
            (*self.failures, *other.failures)[:NAMED],
        )

    def under(self, keys: Sequence[str]) -> Evidence:
        """The evidence with labels by their places among these."""
        place = {key: at for at, key in enumerate(keys)}
        places = torch.tensor([place[key] for key in self.keys], dtype=torch.long)
        return self.evidence.relabelled(places, len(keys))


class Place(NamedTuple):
    """How far a pass is in its source."""

    units: int = 0
    """that were begun"""
    digest: str = ""
    """of which these were"""
    records: int = 0
    """of the last of them that are done"""
    other_splits: int = 0


class Pass:
    """What a pass has gathered up to some place."""

    def __init__(self, width: int) -> None:
        self.place, self.labels, self.gathering = Place(), dict[str, int](), Gathering(width)
        self.failed = 0
        self.failures: list[str] = []

    def add(self, place: Place, found: Encoding) -> None:
        """A batch, which ends at the place."""
        self.failed += len(found.failures)
        self.failures += [str(error) for error in found.failures.values()][: NAMED - len(self.failures)]
        read = (record for at, record in enumerate(found.records) if at not in found.failures)
        own = [self.labels.setdefault(record.label, len(self.labels)) for record in read]
        self.gathering.add(found.global_, torch.tensor(own, dtype=torch.long))
        self.place = place

    def gathered(self) -> Gathered:
        images, evidence = self.gathering.images, self.gathering.evidence(len(self.labels))
        keys, others = tuple(self.labels), self.place.other_splits
        return Gathered(keys, evidence, images, others, self.failed, tuple(self.failures))

    def state(self) -> State:
        """As a checkpoint has it."""
        facts = {"labels": list(self.labels), "failed": self.failed, "failures": self.failures}
        return self.gathering.tensors(), {**facts, "place": self.place._asdict()}

    @classmethod
    def begun(cls, width: int, checkpoint: Checkpoint | None) -> Self:
        """That of the checkpoint, or one that has yet to begin."""
        made = cls(width)
        if checkpoint is None or (state := checkpoint.read()) is None:
            return made
        tensors, facts = state
        try:
            made.gathering = Gathering.from_tensors(tensors)
            made.labels = {str(label): at for at, label in enumerate(facts["labels"])}
            made.failed, made.failures = int(facts["failed"]), [str(why) for why in facts["failures"]]
            made.place = Place(**facts["place"])
        except (KeyError, TypeError, ValueError) as error:
            raise unusable(checkpoint.path, error) from None
        return made


def gather_units(
    backbone: Backbone,
    units: Iterable[Unit],
    saw: Callable[[int], None] = lambda images: None,
    checkpoint: Checkpoint | None = None,
    begun: Pass | None = None,
) -> Gathered:
    """One pass; `saw` is called with the number of images of each batch.

    With a checkpoint it is kept there now and then, and at Ctrl-C; `begun` is what to go on from.
    """
    passing = begun or Pass(backbone.embed_dim)
    whole = True  # sums, kept images and place belong together: not so within an addition
    try:
        with closing(decoder_for(backbone)) as decoders:
            source = str(checkpoint.folder) if checkpoint else "memory"
            batches = _batches(units, passing.place, default_batch(backbone.device), source)
            for place, found in encode_records(backbone, batches, decoders):
                whole = False
                passing.add(place, found)
                whole = True
                if checkpoint:
                    checkpoint.write_if_due(passing.state)
                saw(len(found.records))
        if checkpoint and checkpoint.path.exists():  # a short pass leaves nothing behind, whatever comes next
            checkpoint.write(passing.state())
    except KeyboardInterrupt:
        if checkpoint and whole and passing.place.units:
            checkpoint.write(passing.state())
        raise
    return passing.gathered()


def _batches(
    units: Iterable[Unit], start: Place, size: int, source: str
) -> Iterator[tuple[Place, list[Record]]]:
    """Records to learn from after the first place, so many at a time, and where the last of them lies; at the
    end of all what is left, perhaps none."""
    other = InputError(
        f"{source}: the images are others than when it was gathered (some were added, removed or changed): "
        "give the images of before, or remove it to start anew"
    )
    place, batch = Place(other_splits=start.other_splits), list[Record]()
    for unit in units:
        begun = f"{place.digest} {unit.identity}".encode("utf-8", "backslashreplace")
        place = place._replace(units=place.units + 1, digest=hashlib.sha256(begun).hexdigest(), records=0)
        if place.units < start.units:
            continue
        if place.units == start.units:
            if place.digest != start.digest:
                raise other
            place = place._replace(records=start.records)
        for record in unit.records(place.records):
            place = place._replace(records=place.records + 1)
            if record.split not in ("", "train"):
                place = place._replace(other_splits=place.other_splits + 1)
                continue
            if not record.label and not isinstance(record.content, InputError):
                raise InputError(
                    f"{record.name} has no label: put each class's images in a folder of its own, or give a "
                    "column `label`, or the tar's .cls files"
                )
            batch.append(record)
            if len(batch) == size:
                yield place, batch
                batch = []
    if place.units < start.units:
        raise other
    yield place, batch
