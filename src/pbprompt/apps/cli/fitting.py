"""The three ways of `pbprompt fit`: to a draw of a dataset, in one pass over a stream, and by names alone."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console

from pbprompt import distributed
from pbprompt.apps.audit.corrections import corrected
from pbprompt.apps.audit.duplicates import twins
from pbprompt.apps.cli.calibration_words import (
    calibration_words,
    name_words,
    series_words,
    temperature_words,
    threshold_words,
)
from pbprompt.apps.cli.figures import ahead_words, compare, print_figures, print_trade, twin_words
from pbprompt.apps.cli.fit import AUTO, FitCommand
from pbprompt.apps.cli.output import print_table, quote, refuse
from pbprompt.apps.cli.predict import class_names
from pbprompt.apps.cli.unlabelled import read_unlabelled, tell_of_pool, without_copies
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.learners.fit_options import FitOptions, Views
from pbprompt.learners.fitted import CountsClasses
from pbprompt.learners.method import Method, MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.model.backbone_choice import cheapest, tried
from pbprompt.model.calibration import check_temperature
from pbprompt.model.decisions import skew_words
from pbprompt.model.fitting import fit_into, fit_stream_into, is_stream, kept_beside, usual_shares
from pbprompt.model.hierarchy import checked_hierarchy, levels, read_hierarchy
from pbprompt.model.manifest import check_free, claim
from pbprompt.model.multi_label import check_multi_label
from pbprompt.model.scoring import CHEAP, probe_is_quick, rival_figures
from pbprompt.model.series import by_path, series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.checkpoint import checkpoint_step
from pbprompt.vision.features.cache import FeatureBank, without_unreadable
from pbprompt.vision.images.build_dataset import NONE, Shares
from pbprompt.vision.images.crops import framing_of
from pbprompt.vision.images.fewshot import draw, read_draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.names import described, distinct, read_descriptions
from pbprompt.vision.images.series import from_rows
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.rounding import precision_of

MOST_TRIED = 4  # backbones: fifteen choices of them


def fit_options(options: FitCommand) -> bool:
    """Fit as the options say; whether this process is to say that a model was saved."""
    options = replace(options, device=distributed.start(options.device))
    main = distributed.is_main()
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=not main)
    if not options.dry_run:
        check_free(options.out)
    if not options.kind.trains:
        raise InputError(
            f"--method {options.method}: has nothing to tune: use `pbprompt predict` with --classes"
        )
    _ = precision_of(options.precision, options.device), framing_of(options.framing)  # refused before
    _ = options.config  # anything is read
    if AUTO in options.backbone:
        _check_auto(options)
    if options.pseudo_labels and not options.unlabelled:
        raise InputError("--pseudo-labels tells of unlabelled images: give --unlabelled FOLDER too")
    if not options.data:
        _fit_by_names(options, console)
    elif options.classes:
        raise InputError("--classes: labelled data has its own class names: leave out one of the two")
    elif is_stream(options.data, every=not options.shots):
        _fit_stream(options, console)
    else:
        _fit_dataset(options, console)
    return main and not options.dry_run


def _refuse(options: FitCommand, why: str, **more: object) -> None:
    """Refuse the options of step-by-step training on a draw, where there is no such thing."""
    given = {
        "--shots": options.shots or None,
        "--hold-out": options.hold_out,
        "--corrections": options.corrections,
        "--hierarchy": options.hierarchy,
        "--nested": options.nested or None,
        "--draw": options.draw_file,
        "--views": None if options.views == "centre" else options.views,
        "--max-steps": options.max_steps,
        "--calibrate": options.calibrate or None,
        "--group": options.group or None,
    }
    refuse({**more, **given}, why)


def _fit_by_names(options: FitCommand, console: Console) -> None:
    """No labels at all: names and unlabelled images."""
    if not (options.unlabelled and options.classes):
        raise InputError("nothing to learn from: give DATA, or --unlabelled FOLDER and --classes cat,dog,car")
    _refuse(options, "without labelled images nothing is drawn")
    names = distinct(class_names(options.classes, None))
    options = _described(options, names, (), console)
    pool = read_unlabelled(options)
    assert pool is not None
    model = TunedModel.fit_by_names(
        options.tower, names, pool.images, options.kind, options.config, seed=options.seed
    )
    tell_of_pool(pool, model, options.pseudo_labels, console)
    if distributed.is_main() and not options.dry_run:
        with claim(options.out):
            model.save(options.out)
    distributed.stop()


def _fit_stream(options: FitCommand, console: Console) -> None:
    """One pass over all images; Ctrl-C, or whatever ends it: the same command goes on."""
    _refuse(
        options,
        f"{options.data} is fitted in one pass over all its images",
        **{"--root": options.root, "--dry-run": options.dry_run or None},
        **{"--descriptions": options.descriptions},
    )
    stream = Stream([options.data], allow_urls=options.allow_urls)

    def going_on(images: int) -> None:
        console.print(f"going on after the {images:,} images that are gathered already")

    pool = read_unlabelled(options)
    try:
        model, found = fit_stream_into(
            options.out, stream, options.tower, options.kind, options.config,
            seed=options.seed, classes_file=options.classes_file, going_on=going_on,
            command=options.kept, unlabelled=pool.images if pool else None,
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = kept_beside(options.out, stream, options.tower).path.exists()
        console.print(
            "stopped: what was gathered is kept, and the same command goes on from there"
            if kept
            else "stopped before anything was gathered: the same command starts again"
        )
        raise
    distributed.stop()
    console.print(f"{options.data}: {len(model.classes):,} classes; {found.images:,} images, in one pass")
    if found.other_splits:
        console.print(f"{found.other_splits:,} images of val and test were not learned from")
    if found.failed:
        which = "1 image" if found.failed == 1 else f"{found.failed:,} images"
        console.print(f"left out, since unreadable: {which} ({'; '.join(found.failures)})")
    tell_of_pool(pool, model, options.pseudo_labels, console)
    tell_of_skew(model, console)
    console.print(calibration_words(model))


def _fit_dataset(options: FitCommand, console: Console) -> None:
    """A draw from a folder, table or benchmark; figures on its test split."""
    main, asked = distributed.is_main(), options.kept
    bank = FeatureBank(options.tower, progress=main)
    dataset = _opened(options, bank)
    if dataset.multi_label:
        _check_multi_label(options)
        refuse({"--backbone auto": AUTO in options.backbone or None}, f"{options.data} is multi-label")
    hierarchy = _hierarchy(options, dataset)
    console.print(dataset.describe())
    if options.corrections:
        dataset, done = corrected(dataset, options.corrections)
        console.print(done)
    if Path(options.data).expanduser().exists() and distributed.world()[1] == 1:
        dataset, failures = without_unreadable(dataset, bank)
        tell_unreadable(failures, options.strict, console)
    options = _described(options, dataset.classes, dataset.descriptions, console)
    drawn = None
    if options.draw_file:
        drawn = read_draw(options.draw_file, dataset)
    elif options.shots:
        drawn = draw(dataset, options.shots, options.seed)
    if drawn:
        console.print(drawn.describe())
        dataset = drawn.apply(dataset)
    console.print(learning_words(dataset))
    if options.calibrate:
        check_temperature(dataset, options.kind)
    views = _views(options.views)
    if AUTO in options.backbone:
        options = replace(options, backbone=_best_backbone(options, dataset, bank, console))
        bank, asked["backbone"] = bank.on(options.tower), options.backbone
    if options.method == AUTO and not dataset.multi_label:
        options = replace(options, method=_best_method(options, dataset, bank, console))
    pool = read_unlabelled(options)
    if pool:
        pool = without_copies(pool, dataset, bank, console)

    def announce(method: Method) -> None:
        _check_settings(options, method)
        if isinstance(method, Trained) or not method.backbone.reads_text:
            console.print(parameters(method))

    training = FitOptions(
        seed=options.seed,
        views=views,
        max_steps=1 if options.dry_run else options.max_steps,
        announce=announce,
        unlabelled=pool.images if pool else None,
        group=options.group,
        hierarchy=hierarchy,
    )
    if options.dry_run:
        model = TunedModel.fit(dataset, bank, options.kind, options.config, training)
        distributed.stop()
        losses = ", ".join(f"{name} {value:.4g}" for name, value in model.terms.items())
        did = "one step taken" if isinstance(model.method, Trained) else "fitted"
        console.print(f"dry run: {did}, nothing written{f' ({losses})' if losses else ''}")
        return
    try:
        model = fit_into(
            options.out, dataset, bank, options.kind, options.config, training,
            temperature=options.calibrate, command=asked,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print(stopped_words(checkpoint_step(options.out)))
        raise
    distributed.stop()
    if main:
        tell_of_pool(pool, model, options.pseudo_labels, console)
        _print_outcome(options, model, dataset, console)


def _hierarchy(options: FitCommand, dataset: Dataset) -> dict[str, str]:
    """Of the file, or of the data where that has one."""
    if options.hierarchy:
        return read_hierarchy(options.hierarchy, dataset.classes)
    given = dict(dataset.hierarchy)
    told = options.nested or levels(dataset.hierarchy, dataset.classes)
    return checked_hierarchy(given, dataset.classes, options.data) if told else {}


def tell_unreadable(failures: Mapping[str, InputError], strict: bool, console: Console) -> None:
    """Name the images that cannot be read, each with its reason."""
    if not failures:
        return
    count = "1 image" if len(failures) == 1 else f"{len(failures):,} images"
    if strict:
        raise InputError(f"{count} cannot be read ({', '.join(map(as_text, failures))}): mend or remove them")
    console.print(f"left out, since unreadable: {count} (--strict refuses such data)")
    for error in failures.values():
        console.print(f"  {error}")


def _opened(options: FitCommand, bank: FeatureBank) -> Dataset:
    """The data, all to be learned from where it has no split: but for a test that is asked for, or without
    which a method could not be judged, and which has whole series."""

    def read(held_out: Shares, series: Mapping[str, str] | None = None) -> Dataset:
        file, seed = options.classes_file, options.seed
        named = options.group if from_rows(options.group) else ""
        return open_dataset(
            options.data,
            options.root,
            classes_file=file,
            seed=seed,
            held_out=held_out,
            group=named,
            series=series,
            nested=options.nested,
        )

    if few := bool(options.shots or options.draw_file):
        refuse({"--hold-out": options.hold_out}, "a draw leaves the other images to test by")
    kind, dataset, test = options.kind, read(NONE), options.hold_out
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
    own = Path(options.data).expanduser().exists() and distributed.world()[1] == 1
    readable = without_unreadable(dataset, bank)[0] if own else dataset
    return read(shares, by_path(readable, bank, options.group))


def _described(
    options: FitCommand, classes: Sequence[str], told: tuple[tuple[str, ...], ...], console: Console
) -> FitCommand:
    """With what is said of classes: in the file of --descriptions or else (`told`) in the data's table."""
    file = options.descriptions
    reads = options.method != AUTO and hasattr(options.config, "descriptions")
    if file and not reads:
        raise InputError(f"--descriptions: {options.method} reads none: use --method conjugate")
    if file:
        told = described(classes, read_descriptions(file), str(file))
    elif told:
        found = f"{sum(map(len, told)) - len(told):,}, of {len(told):,} of {len(classes):,} classes"
        use = "read in place of their names" if reads else f"not used, since {options.method} reads none"
        console.print(f"sentences in the column `description`: {found}; {use}")
    if not (told and reads):
        return options
    return replace(options, overrides=[*options.overrides, "descriptions=" + json.dumps(told)])


def _check_multi_label(options: FitCommand) -> None:
    """Refuse what means nothing to a multi-label dataset."""
    check_multi_label(options.kind)
    if distributed.world()[1] > 1:
        raise InputError(f"{options.data} is multi-label, which one process fits: leave torchrun out")
    _refuse(
        options,
        f"{options.data} is multi-label, which is fitted in one step to all training images and calibrated "
        "by these, each left out",
    )


def _check_settings(options: FitCommand, method: Method) -> None:
    """Refuse settings of training that would change nothing."""
    if isinstance(method, Trained):
        return
    of_training = {f"--set {field.name}" for field in fields(MethodConfig)}
    given = [f"--set {word.partition('=')[0].strip()}" for word in options.overrides]
    for option in [*given, "--max-steps"]:
        if option in of_training or (option == "--max-steps" and options.max_steps):
            raise InputError(
                f"{option}: {method.name} takes no training steps, so that it would change nothing: "
                "leave it out, or choose a --method that is trained"
            )


def _check_auto(options: FitCommand) -> None:
    """Refuse to choose where there is nothing to choose by, or from."""
    count = len(options.backbone) - options.backbone.count(AUTO)
    why = ""
    if not 1 < count <= MOST_TRIED:
        why = f"give two to {MOST_TRIED} to choose from too, as in --backbone lite --backbone lite-vit"
    elif options.method == AUTO or not options.kind.takes_several:
        why = "chooses for conjugate: leave --method out, or give one backbone"
    elif not options.data or is_stream(options.data, every=not options.shots):
        why = "chooses by images that are left out, of labelled images that are read twice: give one, or all"
    elif distributed.world()[1] > 1:
        why = "one process chooses: leave torchrun out"
    if why:
        raise InputError(f"--backbone auto: {why}")


def _best_backbone(options: FitCommand, dataset: Dataset, bank: FeatureBank, console: Console) -> list[str]:
    """The cheapest that is not worse than the best, by left-out images; all are printed."""
    given = [name for name in options.backbone if name != AUTO]
    console.print("auto: fitting by each backbone and by several to four fifths of the images, five times")
    found = tried(dataset, bank, options.kind, options.config, options.seed, options.group)
    if not found:
        console.print("auto: nothing can be judged, since no class has two images: by all of them it is")
        return given
    named = {places: " + ".join(given[place] for place in places) for places in found}
    rows = []
    for places, one in found.items():
        figures, (mean, low, high) = one.figures, one.behind
        shown = f"{figures['accuracy']:.2%}", f"{figures['nll']:.3f}"
        beyond = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if mean else ""
        rows.append((named[places], *shown, beyond, f"{1000 * one.seconds:.1f}"))
    columns = ("accuracy", "NLL", "NLL beyond the best (95 %)", "ms an image")
    print_table(("", *columns), rows, right=columns, console=console)
    best, chosen = min(found, key=lambda places: found[places].figures["nll"]), cheapest(found)
    taken = [given[place] for place in chosen]
    if chosen == best:
        console.print(f"auto: {named[best]} is best, and no cheaper one is as good by these images")
    else:
        asked = " ".join(f"--backbone {quote(given[place])}" for place in best)
        console.print(
            f"auto: {named[chosen]}, the cheapest that these images do not show to be worse than the best, "
            f"{named[best]}: {asked} takes that"
        )
    return taken


def _best_method(options: FitCommand, dataset: Dataset, bank: FeatureBank, console: Console) -> str:
    """The best by left-out images; all are printed."""
    console.print("auto: fitting each method to four fifths of the training images, five times")
    train = bank.encode(dataset.root, dataset.train)
    groups = series_of(dataset, dataset.train, bank, options.group)
    task = (options.tower, dataset.classes, train, None, options.seed)
    found = rival_figures(*task, CHEAP, groups, dataset.template)
    if not found:
        console.print("auto: no class has two images to leave one out of: conjugate it is")
        return "conjugate"
    compare(found, console)
    best = next(iter(found))
    console.print(f"auto: {best} has the best likelihood on training images that were left out")
    return best


def _print_outcome(options: FitCommand, model: TunedModel, few: Dataset, console: Console) -> None:
    """Figures, what they lack, and how far the model can be trusted."""
    if model.info.metrics:
        print_figures(model.info.metrics, verbose=options.verbose)
        if model.calibration and not model.info.metrics.get("trade"):
            print_trade(model.calibration.trade, "what it answers of the images that it rests on")
        if "accuracy" in model.info.metrics:
            right = round(100 * model.info.metrics["accuracy"])
            console.print(f"of 100 images like these, about {right} are named right")
            if words := ahead_words(model.info.metrics, options.method):
                console.print(words)
        bank = FeatureBank(model.backbone, progress=False)
        console.print(twin_words(twins(few, model.info.metrics["split"], bank)), end="")
        images, classes = len(few.train), len(few.classes)
        quick = model.multi_label or probe_is_quick(images, classes, model.backbone.embed_dim)
        if options.kind.name != "linear-probe" and not quick:
            console.print(
                f"no linear probe beside them, since {images:,} images of {classes:,} classes take it "
                "longer: --method linear-probe fits it"
            )
    if options.calibrate or model.info.temperature != 1:
        console.print(temperature_words(model))
    tell_of_skew(model, console)
    if words := series_words(model.info.data):
        console.print(words)
    if not model.multi_label and (words := name_words(model.method)):
        console.print(words)
    console.print(threshold_words(model) if model.multi_label else calibration_words(model))


def tell_of_skew(model: TunedModel, console: Console) -> None:
    """Where some classes have many more training images than others, what follows."""
    known = not model.multi_label and isinstance(model.method, CountsClasses)
    if known and (words := skew_words(model.classes, model.class_counts())):
        console.print(words)


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
    note = "" if towers.reads_text else f"; {towers.config.name} reads no text: class names count for nothing"
    return f"{method.name}: {counted:,} learnable parameters{extra}{note}"


def _views(text: str) -> Views:
    if text in ("centre", "fresh"):
        return text  # type: ignore[return-value]
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise InputError(f"--views {text[:20]!r}: use centre, fresh or a number of draws up to 999")
    return int(text)
