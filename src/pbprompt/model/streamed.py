"""A model fitted in one pass over a stream, however many images it has."""

import glob
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.evidence.learners import Streams
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.model.folder import describe_model
from pbprompt.model.learn import learn_beside
from pbprompt.model.nothing import Nothing
from pbprompt.model.provenance import Provenance, pool_facts
from pbprompt.model.streamed_statistics import Gathered, Pass, gather_units
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.checkpoint import Checkpoint
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images import catalog, names
from pbprompt.vision.images.build_dataset import Choices, sorted_keys
from pbprompt.vision.images.locations import is_address
from pbprompt.vision.images.sources import is_saved_dataset
from pbprompt.vision.images.stream import Files, Record, Stream, archive_kind
from pbprompt.vision.towers.backbone import Backbone

MANY = 64  # units of 1,024 files, beyond which a folder or table is not listed
LOOKED_AT = 4  # units of a folder, to see whether it holds images or files of images


def is_stream(source: str, *, every: bool) -> bool:
    """Whether a source is fitted in one pass: an address, a glob, Parquet files, tars, or a folder of these.

    With `every` image wanted also a folder or table of more than 65,536 images, since it would not be held.
    """
    path = Path(source).expanduser()
    if is_address(source) or (glob.has_magic(source) and not path.exists()):
        return True
    if path.is_file() and archive_kind(path) != "table":
        return archive_kind(path) != ""
    known = "/" not in source and catalog.lookup(source.partition(":")[0]) is not None
    if known or not (path.is_file() or path.is_dir()) or (path.is_dir() and is_saved_dataset(path)):
        return False
    try:
        units = list(islice(Stream([path]).units(), MANY + 1 if every else LOOKED_AT))
    except InputError:
        return False  # whoever reads it says so
    return (every and len(units) > MANY) or not any(isinstance(unit, Files) for unit in units)


def kept_beside(folder: Path, stream: Stream, backbone: Backbone) -> Checkpoint:
    """Where this process's part of a pass for the model of that folder is kept until the model is written.

    What the method makes of it has no part in whose it is: a pass serves any names and settings.
    """
    rank, size = distributed.world()
    job = {
        "images": [one.name if isinstance(one, Record) else str(one) for one in stream.sources],
        "addresses": stream.allow_urls,
        "backbone": backbone.fingerprint,
        "precision": str(backbone.dtype),
        "transform": backbone.preprocess.identity,
        "processes": size,
    }
    path = Path(os.path.abspath(folder))  # noqa: PTH100 - `resolve` would follow links
    return Checkpoint(path.with_name(f".{path.name}.gathered"), job, rank)


def gather_stream(
    stream: Stream,
    backbone: Backbone,
    *,
    checkpoint: Checkpoint | None = None,
    going_on: Callable[[int], None] = lambda images: None,
    progress: bool = True,
) -> Gathered:
    """One pass over every labelled image that is not of another split.

    Of several processes each reads its share, and all get everything. With a checkpoint the pass goes on
    where an earlier process was ended, and `going_on` is told after how many images.
    """
    rank, size = distributed.world()
    begun = distributed.agreed(lambda: Pass.begun(backbone.embed_dim, checkpoint))
    if before := sum(distributed.gather_objects(begun.gathering.images + begun.failed)):
        going_on(before)

    def gathered() -> Gathered:
        with Progress("encoding images", shown=progress and distributed.is_main()) as shown:
            shown.expect(None)
            units = islice(stream.units(), rank, None, size)
            return gather_units(backbone, units, shown.advance, checkpoint, begun)

    first, *others = distributed.gather_objects(distributed.agreed(gathered))
    for other in others:
        first = first.merged(other)
    return first


def fit_gathered(
    gathered: Gathered,
    backbone: Backbone,
    kind: type[Method],
    config: MethodConfig,
    choices: Choices,
    *,
    source: str = "stream",
    seed: int = 1,
    naming: Callable[[str], str] = names.from_label,
    unlabelled: Float[Tensor, "m d"] | None = None,
) -> TunedModel:
    """The model of what a pass gathered; `naming` makes class names of labels, as `source` has them."""
    if not gathered.keys:
        why = f": {gathered.failures[0]}" if gathered.failures else ""
        raise InputError(f"{source}: no image to learn from{why}")
    keys = sorted_keys(gathered.keys)
    if len(keys) < 2:
        raise InputError(f"{source}: only one class, {keys[0]!r}: a classifier needs at least two")
    classes = choices.names(keys, source, naming)
    method = build_method(kind, config, backbone, seed, classes, choices.template)
    assert isinstance(method, Streams)  # as `check_streams` saw to
    method.begin_with(gathered.under(keys))
    if unlabelled is not None:
        learn_beside(method, unlabelled)
    method.finish()
    data = Provenance(dataset=source, images=gathered.images, **pool_facts(method))
    kept = getattr(method, "kept", None)  # some of the photographs
    nothing = None if kept is None else Nothing.beside(backbone, kept)
    return TunedModel(method, describe_model(method, seed=seed, data=data), nothing=nothing)


def check_streams(kind: type[Method], config: MethodConfig, backbone: Backbone) -> None:
    """Refuse, before anything is read, a method that needs all its images at once."""
    streams = isinstance(build_method(kind, config, backbone, seed=0), Streams)
    if not streams or getattr(config, "patches", False):
        raise InputError(
            f"{kind.name} needs all its training images at once with these settings: take `conjugate` as it "
            "is, draw some of a folder or table by --shots, or give fewer images"
        )
