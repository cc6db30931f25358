"""A model fitted into a folder: claimed, trained, evaluated and saved; the same call goes on after an end.

What is too large to hold is fitted in one pass over a stream, however many images that has.
"""

import glob
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.evidence.learners import Streams
from pbprompt.files import file_hash
from pbprompt.learners.fit_options import USUAL, FitOptions
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.learners.trained import Trained
from pbprompt.model.card import Provenance, pool_facts
from pbprompt.model.evaluate import calibrate_and_evaluate
from pbprompt.model.folder import describe_model
from pbprompt.model.manifest import claim
from pbprompt.model.nothing import Nothing
from pbprompt.model.streamed_statistics import Gathered, Pass, gather_units
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.checkpoint import Checkpoint
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images import catalog
from pbprompt.vision.images.build_dataset import NONE, OF_A_DRAW, Choices, Shares, sorted_keys
from pbprompt.vision.images.fewshot import write_draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.locations import is_address
from pbprompt.vision.images.names import from_folder, from_label
from pbprompt.vision.images.sources import is_saved_dataset
from pbprompt.vision.images.stream import Files, Record, Stream, archive_kind
from pbprompt.vision.towers.backbone import Backbone

TO_TRY = 6
ASIDE = 0.2  # of each class to validate, and as many to test, for methods that nothing can be left out of
LABELS_TO_TEST = 0.3  # of each label
MANY = 64  # units of 1,024 files, beyond which a folder or table is not listed
LOOKED_AT = 4  # units of a folder, to see whether it holds images or files of images


def fit_into(
    folder: Path,
    dataset: Dataset,
    bank: FeatureCache,
    kind: type[Method],
    config: MethodConfig,
    options: FitOptions = USUAL,
    *,
    temperature: bool = False,
    command: Mapping[str, Any] | None = None,
) -> TunedModel:
    """Fit to a dataset or a draw of it, evaluate by other images, and save the model with its figures.

    Training is checkpointed in the folder: after Ctrl-C or a kill the same call continues from there. Of
    several processes under torchrun, the first writes. `temperature`: scale the probabilities as the
    validation images ask for; `command`: options of the command line, to keep for another fit.
    """
    main = distributed.is_main()
    with claim(folder) if main else nullcontext():
        model = TunedModel.fit(dataset, bank, kind, config, replace(options, folder=folder))
        model = calibrate_and_evaluate(
            model, dataset, bank, temperature=temperature, unlabelled=options.unlabelled
        )
        model = _with_facts(model, options=command or {}, to_try=to_try(dataset))
        if main:
            if dataset.drawn:
                write_draw(folder / "draw.jsonl", dataset.drawn)
            model.save(folder)
    return model


def usual_shares(
    kind: type[Method], config: MethodConfig, *, few: bool = False, multi_label: bool = False
) -> Shares:
    """What of data without a split is kept aside to validate and to test: nothing, where a method can be
    judged by leaving images out and learns from all of them."""
    if few:
        return OF_A_DRAW
    if multi_label:
        return (0.0, LABELS_TO_TEST)
    return (ASIDE, ASIDE) if issubclass(kind, Trained) or kind.needs_validation(config) else NONE


def to_try(dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    """Class, file and hash of a few images that nothing is learned from, by which `serve` finds them."""
    firsts: dict[str, Path] = {}
    for item in dataset.val or dataset.test:
        labels = item.labels if dataset.multi_label else (item.label,)
        name = ", ".join(dataset.classes[label] for label in labels) or "no label"
        firsts.setdefault(name, dataset.file(item).absolute())
    few = islice(firsts.items(), TO_TRY)
    return tuple((name, str(file), digest) for name, file in few if (digest := file_hash(file)))


def _with_facts(model: TunedModel, **facts: Any) -> TunedModel:
    return replace(model, info=replace(model.info, data=replace(model.info.data, **facts)))


def fit_stream_into(
    folder: Path,
    stream: Stream,
    backbone: Backbone,
    kind: type[Method],
    config: MethodConfig,
    *,
    seed: int = 1,
    classes_file: Path | None = None,
    going_on: Callable[[int], None] = lambda images: None,
    command: Mapping[str, Any] | None = None,
    unlabelled: Float[Tensor, "m d"] | None = None,
) -> tuple[TunedModel, Gathered]:
    """Fit in one pass over all images of a stream of one source, and save the model; also what was gathered.

    What is gathered is kept beside the folder until the model is written: the same call goes on from there,
    and `going_on` is called with how many images that are. `classes_file` maps labels to names to read.
    """
    check_streams(kind, config, backbone)
    choices = Choices.of(classes_file, seed=seed)
    checkpoint = stream_checkpoint(folder, stream, backbone)
    main = distributed.is_main()
    with claim(folder) if main else nullcontext():
        found = gather_stream(stream, backbone, checkpoint=checkpoint, going_on=going_on)
        model = fit_gathered(found, backbone, kind, config, choices, str(stream.sources[0]), unlabelled)
        model = model.with_left_out()
        if main:
            _with_facts(model, options=command or {}).save(folder)
        distributed.agreed(lambda: None)  # which all wait for: now the model is written
        checkpoint.remove()
    return model, found


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


def stream_checkpoint(folder: Path, stream: Stream, backbone: Backbone) -> Checkpoint:
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
    where an earlier process was ended, and `going_on` is called with after how many images.
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
    source: str = "stream",
    unlabelled: Float[Tensor, "m d"] | None = None,
) -> TunedModel:
    """The model of what a pass over a source gathered."""
    if not gathered.keys:
        why = f": {gathered.failures[0]}" if gathered.failures else ""
        raise InputError(f"{source}: no image to learn from{why}")
    keys = sorted_keys(gathered.keys)
    if len(keys) < 2:
        raise InputError(f"{source}: only one class, {keys[0]!r}: a classifier needs at least two")
    naming = from_folder if Path(source).expanduser().is_dir() else from_label
    classes = choices.names(keys, source, naming)
    method = build_method(kind, config, backbone, choices.seed, classes, choices.template)
    assert isinstance(method, Streams)  # as `check_streams` saw to
    evidence = gathered.under(keys)
    method.begin_with(evidence, None if unlabelled is None else unlabelled.to(backbone.device))
    data = Provenance(dataset=source, images=gathered.images, **pool_facts(method))
    info = describe_model(method, seed=choices.seed, data=data)
    nothing = None
    if len(backbone.towers) == 1:  # of several each part was kept at length 1, as no image comes
        nothing = Nothing.fit(backbone, evidence.kept.images.to(backbone.device))
    return TunedModel(method, info, nothing=nothing)


def check_streams(kind: type[Method], config: MethodConfig, backbone: Backbone) -> None:
    """Refuse, before anything is read, a method that needs all its images at once."""
    streams = isinstance(build_method(kind, config, backbone, seed=0), Streams)
    if not streams or getattr(config, "patches", False):
        raise InputError(
            f"{kind.name} needs all its training images at once with these settings: take `conjugate` as it "
            "is, draw some of a folder or table by --shots, or give fewer images"
        )
