"""The three ways of `pbprompt fit`: to a draw of a dataset, in one pass over a stream, and by names alone."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from pbprompt import distributed
from pbprompt.apps.audit.corrections import corrected
from pbprompt.apps.batch.pool import Pool
from pbprompt.apps.cli import output
from pbprompt.apps.cli.calibration_words import (
    calibration_words,
    label_threshold_words,
    name_words,
    series_words,
    temperature_words,
)
from pbprompt.apps.cli.figures import ahead_words, compare, print_figures, print_trade, twin_words
from pbprompt.apps.cli.fit import AUTO, FitCommand
from pbprompt.apps.cli.options import refuse, refuse_first
from pbprompt.apps.cli.output import print_table, quote
from pbprompt.apps.cli.predict import class_names
from pbprompt.apps.cli.unlabelled import pool_words, read_unlabelled, without_copies, write_pseudo_labels
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.learners.fit_options import FitOptions, Views
from pbprompt.learners.fitted import CountsClasses
from pbprompt.learners.method import Method, MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.model.backbone_choice import cheapest, tried
from pbprompt.model.decisions import skew_words
from pbprompt.model.evaluate import check_temperature
from pbprompt.model.fitting import fit_into, fit_stream_into, is_stream, stream_checkpoint, usual_shares
from pbprompt.model.hierarchy import checked_hierarchy, levels, read_hierarchy
from pbprompt.model.learn import check_multi_label
from pbprompt.model.manifest import check_free, claim
from pbprompt.model.scoring import CHEAP, probe_is_quick, rival_figures
from pbprompt.model.series import by_path, series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.checkpoint import checkpoint_step
from pbprompt.vision.features.cache import FeatureCache, without_unreadable
from pbprompt.vision.images.crops import framing_of
from pbprompt.vision.images.fewshot import draw, read_draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.names import described, distinct, read_descriptions
from pbprompt.vision.images.series import from_rows
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.rounding import precision_of

MOST_TRIED = 4  # backbones: fifteen choices of them
OF_A_DRAW = "shots hold_out corrections hierarchy nested draw_file views max_steps calibrate group"


class FitResult(NamedTuple):
    """What one of the ways came to; a dataset where there are figures on one."""

    model: TunedModel
    pool: Pool | None
    dataset: Dataset | None = None


def run_fit(options: FitCommand) -> bool:
    """Fit as the options say; whether this process is to say that a model was saved."""
    options = replace(options, device=distributed.start(options.device))
    main = distributed.is_main()
    if not options.dry_run:
        check_free(options.out)
    if not options.kind.trains:
        raise InputError(
            f"--method {options.method}: has nothing to tune: use `pbprompt predict` with --classes"
        )
    precision_of(options.precision, options.device)  # what these refuse is refused before anything is read
    framing_of(options.framing)
    _ = options.config
    stream = bool(options.data) and is_stream(options.data, every=not options.shots)
    if AUTO in options.backbone:
        _check_auto(options, stream)
    if not options.unlabelled:
        refuse(options, "pseudo_labels", "tells of unlabelled images", "give --unlabelled FOLDER too")
    if options.data:
        refuse(options, "classes", "labelled data has its own class names")
    found = (_fit_stream if stream else _fit_dataset if options.data else _fit_by_names)(options)
    distributed.stop()
    if main and options.dry_run:
        losses = ", ".join(f"{name} {value:.4g}" for name, value in found.model.terms.items())
        did = "one step taken" if isinstance(found.model.method, Trained) else "fitted"
        note(f"dry run: {did}, nothing written{f' ({losses})' if losses else ''}")
    elif main:
        _print_outcome(options, *found)
    return main and not options.dry_run


def note(message: object) -> None:
    """A line on what was done, of the first process."""
    if distributed.is_main():
        output.note(message)


def _fit_by_names(options: FitCommand) -> FitResult:
    """No labels at all: names and unlabelled images."""
    if not (options.unlabelled and options.classes):
        raise InputError("nothing to learn from: give DATA, or --unlabelled FOLDER and --classes cat,dog,car")
    refuse(options, OF_A_DRAW, "without labelled images nothing is drawn")
    names = distinct(class_names(options.classes, None))
    options = _described(options, names)
    pool = read_unlabelled(options)
    assert pool is not None
    model = TunedModel.fit_by_names(
        options.tower, names, pool.images, options.kind, options.config, seed=options.seed
    )
    if distributed.is_main() and not options.dry_run:
        with claim(options.out):
            model.save(options.out)
    return FitResult(model, pool)


def _fit_stream(options: FitCommand) -> FitResult:
    """One pass over all images; Ctrl-C, or whatever ends it: the same command goes on."""
    why = f"{options.data} is fitted in one pass over all its images"
    refuse(options, f"root dry_run descriptions {OF_A_DRAW}", why)
    stream, pool = Stream([options.data], allow_urls=options.allow_urls), read_unlabelled(options)
    try:
        model, found = fit_stream_into(
            options.out,
            stream,
            options.tower,
            options.kind,
            options.config,
            seed=options.seed,
            classes_file=options.classes_file,
            going_on=lambda images: note(f"going on after the {images:,} images that are gathered already"),
            command=options.kept,
            unlabelled=pool.images if pool else None,
        )
    except KeyboardInterrupt:
        kept = stream_checkpoint(options.out, stream, options.tower).path.exists()
        note(
            "stopped: what was gathered is kept, and the same command goes on from there"
            if kept
            else "stopped before anything was gathered: the same command starts again"
        )
        raise
    note(f"{options.data}: {len(model.classes):,} classes; {found.images:,} images, in one pass")
    if found.other_splits:
        note(f"{found.other_splits:,} images of val and test were not learned from")
    if found.failed:
        lost = f"{found.failed:,} image{'s' * (found.failed > 1)}"
        note(f"left out, since unreadable: {lost} ({'; '.join(found.failures)})")
    return FitResult(model, pool)


def _fit_dataset(options: FitCommand) -> FitResult:
    """A draw from a folder, table or benchmark; figures on its test split."""
    kept = options.kept
    bank = FeatureCache(options.tower, progress=distributed.is_main())
    dataset = _opened(options, bank)
    if dataset.multi_label:
        _check_multi_label(options)
    hierarchy = _hierarchy(options, dataset)
    note(dataset.describe())
    if options.corrections:
        dataset, done = corrected(dataset, options.corrections)
        note(done)
    dataset, failures = _readable(options, dataset, bank)
    if failures:
        count = f"{len(failures):,} image{'s' * (len(failures) > 1)}"
        if options.strict:
            names = ", ".join(map(as_text, failures))
            raise InputError(f"{count} cannot be read ({names}): mend or remove them")
        note(f"left out, since unreadable: {count} (--strict refuses such data)")
        for error in failures.values():
            note(f"  {error}")
    options = _described(options, dataset.classes, dataset.descriptions)
    if options.draw_file or options.shots:
        file, shots = options.draw_file, options.shots
        drawn = read_draw(file, dataset) if file else draw(dataset, shots, options.seed)
        note(drawn.describe())
        dataset = drawn.apply(dataset)
    note(learning_words(dataset))
    if options.calibrate:
        check_temperature(dataset, options.kind)
    views = _views(options.views)
    if AUTO in options.backbone:
        options = replace(options, backbone=_best_backbone(options, dataset, bank))
        bank, kept["backbone"] = bank.on(options.tower), options.backbone
    if options.method == AUTO and not dataset.multi_label:
        options = replace(options, method=_best_method(options, dataset, bank))
    _check_settings(options)
    if pool := read_unlabelled(options):
        pool = without_copies(pool, dataset, bank, note)

    def announce(method: Method) -> None:
        if isinstance(method, Trained) or not method.backbone.reads_text:
            note(parameters(method))

    training = FitOptions(
        seed=options.seed,
        views=views,
        max_steps=1 if options.dry_run else options.max_steps,
        announce=announce,
        unlabelled=pool.images if pool else None,
        group=options.group,
        hierarchy=hierarchy,
    )
    task = dataset, bank, options.kind, options.config, training
    if options.dry_run:
        return FitResult(TunedModel.fit(*task), pool)
    try:
        model = fit_into(options.out, *task, temperature=options.calibrate, command=kept)
    except KeyboardInterrupt:
        note(stopped_words(checkpoint_step(options.out)))
        raise
    return FitResult(model, pool, dataset)


def _hierarchy(options: FitCommand, dataset: Dataset) -> dict[str, str]:
    """Of the file, or of the data where that has one."""
    if options.hierarchy:
        return read_hierarchy(options.hierarchy, dataset.classes)
    if options.nested or levels(dataset.hierarchy, dataset.classes):
        return checked_hierarchy(dict(dataset.hierarchy), dataset.classes, options.data)
    return {}


def _readable(
    options: FitCommand, dataset: Dataset, bank: FeatureCache
) -> tuple[Dataset, dict[str, InputError]]:
    """Own data without what cannot be read, and why; a benchmark is as its makers have it."""
    own = Path(options.data).expanduser().exists() and distributed.world()[1] == 1
    return without_unreadable(dataset, bank) if own else (dataset, {})


def _opened(options: FitCommand, bank: FeatureCache) -> Dataset:
    """The data, all to be learned from where it has no split: but for a test that is asked for, or without
    which a method could not be judged, and which has whole series."""
    read = partial(
        open_dataset,
        options.data,
        options.root,
        classes_file=options.classes_file,
        seed=options.seed,
        group=options.group if from_rows(options.group) else "",
        nested=options.nested,
    )
    if few := bool(options.shots or options.draw_file):
        refuse(options, "hold_out", "a draw leaves the other images to test by")
    kind, dataset, test = options.kind, read(), options.hold_out
    if dataset.val or dataset.test:
        if test:
            raise InputError(f"--hold-out: {options.data} has a test split of its own: leave it out")
        return dataset if test is None else replace(dataset, train=dataset.items, val=(), test=())
    shares = usual_shares(kind, options.config, few=few, multi_label=dataset.multi_label)
    if test is not None:
        shares = (shares[0] if test else 0.0, test)
    if sum(shares) >= 1:
        raise InputError(f"--hold-out {test:g}: leaves {kind.name} no images to train on: give less")
    if not any(shares):
        return dataset
    return read(held_out=shares, series=by_path(_readable(options, dataset, bank)[0], bank, options.group))


def _described(
    options: FitCommand, classes: Sequence[str], found: tuple[tuple[str, ...], ...] = ()
) -> FitCommand:
    """With what is said of classes: in the file of --descriptions or else (`found`) in the data's table."""
    reads = options.method != AUTO and hasattr(options.config, "descriptions")
    if file := options.descriptions:
        if not reads:
            raise InputError(f"--descriptions: {options.method} reads none: use --method conjugate")
        found = described(classes, read_descriptions(file), str(file))
    elif found:
        count = f"{sum(map(len, found)) - len(found):,}, of {len(found):,} of {len(classes):,} classes"
        use = "read in place of their names" if reads else f"not used, since {options.method} reads none"
        note(f"sentences in the column `description`: {count}; {use}")
    if not (found and reads):
        return options
    return replace(options, overrides=[*options.overrides, "descriptions=" + json.dumps(found)])


def _check_multi_label(options: FitCommand) -> None:
    """Refuse what means nothing to a multi-label dataset."""
    check_multi_label(options.kind)
    several = f"{options.data} is multi-label"
    refuse_first(
        (distributed.world()[1] > 1, f"{several}, which one process fits: leave torchrun out"),
        (AUTO in options.backbone, f"--backbone auto: {several}: leave it out"),
    )
    once = "fitted in one step to all training images and calibrated by these, each left out"
    refuse(options, OF_A_DRAW, f"{several}, which is {once}")


def _check_settings(options: FitCommand) -> None:
    """Refuse settings of training that would change nothing."""
    if issubclass(options.kind, Trained):
        return
    none = f"{options.kind.name} takes no training steps, so that it would change nothing"
    instead = "choose a --method that is trained"
    refuse(options, "max_steps", none, instead)
    of_training = {field.name for field in fields(MethodConfig)}
    for key in (word.partition("=")[0].strip() for word in options.overrides):
        if key in of_training:
            raise InputError(f"--set {key}: {none}: {instead}, or leave it out")


def _check_auto(options: FitCommand, stream: bool) -> None:
    """Refuse to choose where there is nothing to choose by, or from."""
    count = len(options.backbone) - options.backbone.count(AUTO)
    as_in = "as in --backbone lite --backbone lite-vit"
    by = "images that are left out, of labelled images that are read twice"
    others = options.method == AUTO or not options.kind.takes_several
    why = "--backbone auto:"
    refuse_first(
        (not 1 < count <= MOST_TRIED, f"{why} give two to {MOST_TRIED} to choose from too, {as_in}"),
        (others, f"{why} chooses for conjugate: leave --method out, or give one backbone"),
        (stream or not options.data, f"{why} chooses by {by}: give one, or all"),
        (distributed.world()[1] > 1, f"{why} one process chooses: leave torchrun out"),
    )


def _best_backbone(options: FitCommand, dataset: Dataset, bank: FeatureCache) -> list[str]:
    """The cheapest that is not worse than the best, by left-out images; all are printed."""
    given = [name for name in options.backbone if name != AUTO]
    note("auto: fitting by each backbone and by several to four fifths of the images, five times")
    found = tried(dataset, bank, options.kind, options.config, options.seed, options.group)
    if not found:
        note("auto: nothing can be judged, since no class has two images: by all of them it is")
        return given
    named = {places: " + ".join(given[place] for place in places) for places in found}
    rows = []
    for places, one in found.items():
        mean, low, high = one.behind
        beyond = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if mean else ""
        shown = f"{one.figures['accuracy']:.2%}", f"{one.figures['nll']:.3f}", beyond
        rows.append((named[places], *shown, f"{1000 * one.seconds:.1f}"))
    columns = ("accuracy", "NLL", "NLL beyond the best (95 %)", "ms an image")
    print_table(("", *columns), rows, right=columns, console=Console(stderr=True))
    best, chosen = min(found, key=lambda places: found[places].figures["nll"]), cheapest(found)
    if chosen == best:
        note(f"auto: {named[best]} is best, and no cheaper one is as good by these images")
    else:
        command = " ".join(f"--backbone {quote(given[place])}" for place in best)
        note(
            f"auto: {named[chosen]}, the cheapest that these images do not show to be worse than the best, "
            f"{named[best]}: {command} takes that"
        )
    return [given[place] for place in chosen]


def _best_method(options: FitCommand, dataset: Dataset, bank: FeatureCache) -> str:
    """The best by left-out images; all are printed."""
    note("auto: fitting each method to four fifths of the training images, five times")
    train = bank.encode(dataset.root, dataset.train)
    groups = series_of(dataset, dataset.train, bank, options.group)
    task = options.tower, dataset.classes, train, None, options.seed
    found = rival_figures(*task, CHEAP, groups, dataset.template)
    if not found:
        note("auto: no class has two images to leave one out of: conjugate it is")
        return "conjugate"
    compare(found, Console(stderr=True, quiet=not distributed.is_main()))
    best = next(iter(found))
    note(f"auto: {best} has the best likelihood on training images that were left out")
    return best


def _print_outcome(
    options: FitCommand, model: TunedModel, pool: Pool | None, dataset: Dataset | None
) -> None:
    """What became of unlabelled images, figures, what they lack, and how far the model can be trusted."""
    for words in pool_words(pool, model) if pool else ():
        note(words)
    if pool and options.pseudo_labels:
        write_pseudo_labels(pool, model, options.pseudo_labels)
        note(f"wrote {options.pseudo_labels}: what each is taken for")
    lines: list[str] = []
    if dataset and (metrics := model.info.metrics):
        print_figures(metrics, verbose=options.verbose)
        if model.calibration and not metrics.get("trade"):
            print_trade(model.calibration.trade, "what it answers of the images that it rests on")
        if "accuracy" in metrics:
            right = round(100 * metrics["accuracy"])
            lines.append(f"of 100 images like these, about {right} are named right")
            lines.append(ahead_words(metrics, options.method))
        lines.append(twin_words(dataset, metrics["split"], FeatureCache(model.backbone, progress=False)))
        images, classes = len(dataset.train), len(dataset.classes)
        quick = model.multi_label or probe_is_quick(images, classes, model.backbone.embed_dim)
        if options.kind.name != "linear-probe" and not quick:
            lines.append(
                f"no linear probe beside them, since {images:,} images of {classes:,} classes take it "
                "longer: --method linear-probe fits it"
            )
    if options.calibrate or model.info.temperature != 1:
        lines.append(temperature_words(model))
    if not model.multi_label and isinstance(model.method.fitted, CountsClasses):
        lines.append(skew_words(model.classes, model.class_counts()))
    if dataset:
        lines += series_words(model.info.data)
    if model.multi_label:
        lines += label_threshold_words(model)
    else:
        lines += (*name_words(model.method), calibration_words(model))
    for line in filter(None, lines):
        note(line)


def learning_words(dataset: Dataset) -> str:
    """How many of the images are learned from, and what the others are for."""
    used, whole = len(dataset.train), dataset.whole
    if used == len(whole.items):
        return f"learning from all {used:,} images"
    others = {"validation": len(whole.val), "test": len(whole.test), "not drawn": len(whole.train) - used}
    aside = ", ".join(f"{count:,} {what}" for what, count in others.items() if count)
    return f"learning from {used:,} of {len(whole.items):,} images; the others are kept aside: {aside}"


def stopped_words(step: int | None) -> str:
    """What the same command does after Ctrl-C."""
    if not step:
        return "stopped before the first step: the same command starts again; encoded images are kept"
    return f"stopped: the same command continues from step {step:,}"


def parameters(method: Method) -> str:
    """Learnable parameters, as the paper counts them and in full."""
    full = sum(parameter.numel() for parameter in method.parameters())
    counted = method.counted_parameters()
    extra = "" if counted == full else f" as the paper counts ({full:,} in full)"
    towers = method.backbone
    textless = (
        "" if towers.reads_text else f"; {towers.config.name} reads no text: class names count for nothing"
    )
    return f"{method.name}: {counted:,} learnable parameters{extra}{textless}"


def _views(text: str) -> Views:
    if text in ("centre", "fresh"):
        return text  # type: ignore[return-value]
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise InputError(f"--views {text[:20]!r}: use centre, fresh or a number of draws up to 999")
    return int(text)
