"""A model fitted in one pass over a stream, however many images it has."""

import glob
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pbprompt import distributed
from pbprompt.clip.backbone import Backbone
from pbprompt.data import catalog, names
from pbprompt.data.assemble import Choices, sorted_keys
from pbprompt.data.download import is_address
from pbprompt.data.huggingface import is_saved_dataset
from pbprompt.data.stream import Files, Stream, Unit
from pbprompt.data.stream.streams import PARQUETS, TABLES, TARS
from pbprompt.errors import InputError
from pbprompt.features.gathered import Gathered, gather_units
from pbprompt.features.progress import Progress
from pbprompt.methods.base import Method, MethodConfig, build_method
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel

MANY = 64  # units of 1,024 files, beyond which a folder or table is not listed
LOOKED_AT = 4  # units of a folder, to see whether it holds images or files of images


@dataclass(frozen=True)
class StreamedFit:
    """The model, and what was gathered for it."""

    model: TunedModel
    gathered: Gathered


def is_stream(source: str, *, every: bool) -> bool:
    """Whether a source is fitted in one pass: an address, a glob, Parquet files, tars, or a folder of these.

    With `every` image wanted also a folder or table of more than 65,536 images, since it would not be held.
    """
    path = Path(source).expanduser()
    if is_address(source) or (glob.has_magic(source) and not path.exists()):
        return True
    if path.is_file() and path.suffix.lower() not in TABLES:
        return path.suffix.lower() in PARQUETS or path.name.lower().endswith(TARS)
    known = "/" not in source and catalog.lookup(source.partition(":")[0]) is not None
    if known or not (path.is_file() or path.is_dir()) or (path.is_dir() and is_saved_dataset(path)):
        return False
    try:
        units = list(islice(Stream([path]).units(), MANY + 1 if every else LOOKED_AT))
    except InputError:
        return False  # whoever reads it says so
    return len(units) > MANY or not any(isinstance(unit, Files) for unit in units)


def fit_stream(
    stream: Stream,
    backbone: Backbone,
    kind: type[Method],
    config: MethodConfig,
    choices: Choices,
    *,
    seed: int = 1,
    progress: bool = True,
) -> StreamedFit:
    """Fit to every labelled image that is not of another split; of several processes each reads its share."""
    method = build_method(kind, config, backbone, seed)
    if not method.streams:
        raise InputError(
            f"{method.name} needs all its training images at once: take `conjugate`, or give a folder or "
            "table of fewer images"
        )
    source = ", ".join(map(str, stream.sources))
    identity = hashlib.sha256()

    def own_units() -> Iterator[Unit]:
        rank, size = distributed.world()
        for number, unit in enumerate(stream.units()):
            identity.update(unit.identity.encode() + b"\n")
            if number % size == rank:
                yield unit

    gathered = _together(lambda saw: gather_units(backbone, own_units(), saw), progress)
    if not gathered.keys:
        why = f": {gathered.failures[0]}" if gathered.failures else ""
        raise InputError(f"{source}: no image to learn from{why}")
    keys = sorted_keys(gathered.keys)
    if len(keys) < 2:
        raise InputError(f"{source}: only one class, {keys[0]!r}: a classifier needs at least two")
    classes = _names(stream, keys, choices, source)
    method.prepare(classes, choices.template)
    method.begin_with(gathered.under(keys))
    method.finish()
    data: dict[str, str | int] = {
        "dataset": source,
        "content_hash": identity.hexdigest(),
        "images": gathered.images,
    }
    return StreamedFit(TunedModel(method, describe_model(method, seed=seed, data=data)), gathered)


def _together(gather: Callable[[Callable[[int], None]], Gathered], progress: bool) -> Gathered:
    """What all processes gathered, the same in each."""
    mine, error = None, None
    try:
        with Progress("encoding images", shown=progress and distributed.is_main()) as shown:
            shown.expect(None)
            mine = gather(shown.advance)
    except InputError as failure:
        error = failure
    distributed.agree_on_errors(error)
    assert mine is not None
    first, *others = distributed.gather_objects(mine)
    for other in others:
        first = first.merged(other)
    return first


def _names(stream: Stream, keys: list[str], choices: Choices, where: str) -> list[str]:
    """As `open_dataset` has them: folders are named by words, labels are names."""
    folders = any(Path(str(source)).is_dir() for source in stream.sources)
    classes = [names.from_folder(key) if folders else names.from_label(key) for key in keys]
    if choices.mapping is not None:
        classes = names.apply_mapping(keys, classes, choices.mapping, choices.mapping_from)
    names.check_distinct(keys, classes, where)
    return classes
