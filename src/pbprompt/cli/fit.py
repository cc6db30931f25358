"""`pbprompt fit`: tune a classifier on a few labelled images."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.cli.calibration_words import calibration_words, name_words, temperature_words, threshold_words
from pbprompt.cli.options import with_options
from pbprompt.cli.output import refuse
from pbprompt.cli.unlabelled import fit_by_names, read_unlabelled, tell_of_pool, without_copies
from pbprompt.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from pbprompt.clip.backbone import Backbone
    from pbprompt.data.items import Dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.methods.base import Method, MethodConfig
    from pbprompt.model.tuned import TunedModel
    from pbprompt.train.tune import Views

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What to fit, to what, and where to save it."""

    data: str = typer.Argument(
        "",
        help="A folder, table, split file, Parquet file, tar, glob or address; or a benchmark with --root. "
        "Left out with --unlabelled and --classes.",
    )
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the model.")
    method: str = typer.Option(
        "conjugate",
        help="conjugate (seconds), pbprompt (the paper's), …; `pbprompt methods` lists them. auto: the best "
        "of conjugate, class mean, nearest neighbours and linear probe by left-out images.",
    )
    shots: int = typer.Option(0, min=0, help="Training images per class, drawn by --seed; 0: all.")
    seed: int = typer.Option(1, help="Seed of the draw, the start values and the training.")
    preset: str = typer.Option("default", help="A preset of the method, such as `paper`.")
    variant: str = typer.Option("", help="A variant of the method, such as `b-prompt`.")
    overrides: list[str] = typer.Option([], "--set", help="A setting as key=value; may be repeated.")
    backbone: str = typer.Option("lite", help="lite, lite-vit, an OpenAI name, a file, folder or hub id.")
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell.")
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    root: Path | None = typer.Option(None, help="Where the benchmarks are (or $PBPROMPT_DATA).")
    classes_file: Path | None = typer.Option(None, help="Maps folder names or labels to class names.")
    descriptions: Path | None = typer.Option(
        None, help="A YAML file, `class: sentence` or a list of them: what is said of classes to the model."
    )
    draw_file: Path | None = typer.Option(None, "--draw", help="A draw file to train on instead of drawing.")
    views: str = typer.Option("centre", help="Training crops: centre, a number of random draws, or fresh.")
    max_steps: int | None = typer.Option(None, min=1, help="Stop after so many steps.")
    corrections: Path | None = typer.Option(
        None, help="A table that `look` or its page wrote: images to relabel or drop."
    )
    calibrate: bool = typer.Option(
        False,
        "--calibrate",
        help="Scale the probabilities by a temperature fitted to validation images; the default method does "
        "so by itself where a hundred are at hand.",
    )
    unlabelled: list[str] = typer.Option(
        [],
        help="Images without labels to learn from too, from wherever `predict` reads; may be repeated.",
    )
    pseudo_labels: Path | None = typer.Option(
        None, help="Write what each of --unlabelled is taken for to this CSV file."
    )
    classes: str = typer.Option("", "--classes", "-c", help="Without labelled images: names, by commas.")
    allow_urls: bool = typer.Option(False, "--allow-urls", help="Fetch the data where it is an address.")
    dry_run: bool = typer.Option(False, help="Say what would be trained, try one step, write nothing.")

    @cached_property
    def kind(self) -> "type[Method]":
        from pbprompt.registry import find_method

        if self.method == AUTO:  # until the images are there, and where it is the only one that can
            given = {"--preset": self.preset, "--variant": self.variant, "--set": self.overrides}
            usual = {"--preset": "default", "--variant": "", "--set": []}
            refuse(
                {name: value if value != usual[name] else None for name, value in given.items()},
                "--method auto takes each method as it is",
            )
            return find_method("conjugate")
        return find_method(self.method)

    @cached_property
    def config(self) -> "MethodConfig":
        from pbprompt.methods.base import make_config

        return make_config(self.kind, self.preset, self.variant, self.overrides)

    @cached_property
    def tower(self) -> "Backbone":
        from pbprompt.clip.loading.load import load_backbone

        return load_backbone(self.backbone, activation=self.activation, device=self.device)

    def announce(self, method: "Method") -> None:
        """Say how much is trained; settings of training that would change nothing are refused first."""
        from pbprompt.methods.base import MethodConfig

        of_training = {field.name for field in fields(MethodConfig)}
        for word in self.overrides if not method.stepwise else ():
            if (key := word.partition("=")[0].strip()) in of_training:
                raise InputError(
                    f"--set {key}: {method.name} takes no training steps, so that it would change nothing: "
                    "leave it out, or choose a --method that is trained"
                )
        fit_console().print(parameters(method))

    def refuse(self, why: str, **more: object) -> None:
        """Refuse the options of step-by-step training on a draw, where there is no such thing."""
        given = {
            "--corrections": self.corrections,
            "--draw": self.draw_file,
            "--views": None if self.views == "centre" else self.views,
            "--max-steps": self.max_steps,
            "--calibrate": self.calibrate or None,
        }
        refuse({**more, **given}, why)

    @property
    def kept(self) -> dict[str, object]:
        """What another fit of the same sources needs, as JSON; where things are, from anywhere."""
        given: dict[str, object] = {}
        for name, usual in _defaults().items():
            value = getattr(self, name)
            if name not in ("out", "device", "dry_run") and value != usual:
                given[name] = str(value.absolute()) if isinstance(value, Path) else value
        if Path(self.data).expanduser().exists():
            given["data"] = str(Path(self.data).expanduser().absolute())
        return given

    @classmethod
    def of(cls, kept: Mapping[str, object]) -> "FitOptions":
        """From what was kept; paths may be text."""
        if unknown := set(kept) - set(_defaults()):
            raise InputError(f"option {min(unknown)!r} is none of `pbprompt fit`: use `pbprompt fit`")
        paths = {field.name for field in fields(cls) if field.type in (Path, Path | None)}
        given: dict[str, Any] = dict(kept)
        given |= {name: Path(given[name]) for name in paths & set(given)}
        return cls(**{**_defaults(), **given})


def _defaults() -> dict[str, Any]:
    """Of each option of `fit`; those of options that must be given mean nothing."""
    return {field.name: getattr(field.default, "default", None) for field in fields(FitOptions)}


@with_options(FitOptions)
def fit(options: FitOptions) -> None:
    """Fit a classifier to a few labelled images and save it, with its figures on the test split.

    The default, `conjugate`, takes what a class's name says as a first guess and lets its photographs correct
    it: no training, seconds. [bold]--method pbprompt[/bold] tunes the paper's prompts, in minutes.

    Its figures stand beside those of zero-shot and of plain classifiers of the same training images (class
    mean, nearest neighbours, linear probe): what tuning bought is seen at once. [bold]--method auto[/bold]
    takes the best of these and the default, by the likelihood of training images that were left out.

    Validation images are not trained on: they tell `predict` when the model is unsure and, with
    [bold]--calibrate[/bold], how far to trust its probabilities.

    [bold]pbprompt fit photos/ --out model/[/bold]

    [bold]pbprompt fit caltech101 --root DATA --method pbprompt --preset paper --out model/[/bold]

    A table whose column is called `labels`, with cells such as beach|dog, is multi-label:
    [bold]pbprompt fit labels.csv --out model/[/bold] (docs/multi-label.md).

    Parquet files, WebDataset tars, addresses and folders of more than 65,536 images are read in one pass, in
    memory that does not grow with them:
    [bold]pbprompt fit 'shards/*.tar' --out model/[/bold] (docs/streaming-fit.md).

    Images without labels help where few have one: [bold]pbprompt fit photos/ --unlabelled more/ --out model/
    [/bold]. Whether they are used is what labelled images say that are left out (docs/unlabelled.md). With
    names alone: [bold]pbprompt fit --unlabelled more/ --classes cat,dog,car --out model/[/bold]

    Ctrl-C keeps a checkpoint: the same command continues from there. Under torchrun several processes share
    one run: [bold]torchrun --nproc-per-node 4 -m pbprompt fit …[/bold]
    """
    fit_options(options)


def fit_options(options: FitOptions) -> None:
    """The verb itself."""
    from pbprompt import distributed
    from pbprompt.model.manifest import check_free
    from pbprompt.model.streamed import is_stream

    options = replace(options, device=distributed.start(options.device))
    if not options.dry_run:
        check_free(options.out)
    if not options.kind.trains:
        raise InputError(
            f"--method {options.method}: has nothing to tune: use `pbprompt predict` with --classes"
        )
    _ = options.config  # settings are refused before anything is read
    if options.pseudo_labels and not options.unlabelled:
        raise InputError("--pseudo-labels tells of unlabelled images: give --unlabelled FOLDER too")
    if not options.data:
        fit_by_names(options)
    elif options.classes:
        raise InputError("--classes: labelled data has its own class names: leave out one of the two")
    elif is_stream(options.data, every=not options.shots):
        _fit_stream(options)
    else:
        _fit_dataset(options)


def _check_multi_label(options: FitOptions) -> None:
    """Refuse what means nothing to a multi-label dataset."""
    from pbprompt import distributed
    from pbprompt.model.multi_label import check_multi_label

    check_multi_label(options.kind)
    if distributed.world()[1] > 1:
        raise InputError(f"{options.data} is multi-label, which one process fits: leave torchrun out")
    options.refuse(
        f"{options.data} is multi-label, which is fitted in one step to all training images and calibrated "
        "by these, each left out",
        **{"--shots": options.shots or None},
    )


def _fit_stream(options: FitOptions) -> None:
    """One pass over all images; Ctrl-C, or whatever ends it: the same command goes on."""
    from pbprompt import distributed
    from pbprompt.data.stream import Stream
    from pbprompt.model.fitting import fit_stream_into
    from pbprompt.model.streamed import kept_beside

    options.refuse(
        f"{options.data} is fitted in one pass over all its images",
        **{"--shots": options.shots or None, "--root": options.root, "--dry-run": options.dry_run or None},
    )
    console = fit_console()
    try:
        stream = Stream([options.data], allow_urls=options.allow_urls)
    except InputError as error:
        raise InputError(f"{error}: add --allow-urls") from None

    def going_on(images: int) -> None:
        console.print(f"going on after the {images:,} images that are gathered already")

    tower, about = options.tower, {"options": options.kept}
    pool = read_unlabelled(options.unlabelled, tower, data=options.data, allow_urls=options.allow_urls)
    try:
        model, found = fit_stream_into(
            options.out, stream, tower, options.kind, options.config,
            seed=options.seed, classes_file=options.classes_file, going_on=going_on, about=about,
            unlabelled=pool.images if pool else None,
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = kept_beside(options.out, stream, tower).path.exists()
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
    console.print(calibration_words(model.calibration))
    console.print(f"saved: {options.out}")


def _fit_dataset(options: FitOptions) -> None:
    """A draw from a folder, table or benchmark; figures on its test split."""
    from pbprompt import distributed
    from pbprompt.data.fewshot import Draw, draw, read_draw
    from pbprompt.data.names import described, read_descriptions
    from pbprompt.data.sources import open_dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.findings.corrections import corrected
    from pbprompt.model.calibration import check_temperature
    from pbprompt.model.fitting import fit_into
    from pbprompt.model.tuned import TunedModel
    from pbprompt.train.checkpoint import checkpoint_step

    console, main, asked = fit_console(), distributed.is_main(), options.kept
    dataset = open_dataset(options.data, options.root, classes_file=options.classes_file, seed=options.seed)
    if dataset.multi_label:
        _check_multi_label(options)
    console.print(dataset.describe())
    if options.corrections:
        dataset, done = corrected(dataset, options.corrections)
        console.print(done)
    if options.descriptions:
        if options.method == AUTO or not hasattr(options.config, "descriptions"):
            raise InputError(f"--descriptions: {options.method} reads none: use --method conjugate")
        told = described(dataset.classes, read_descriptions(options.descriptions), str(options.descriptions))
        options = replace(options, overrides=[*options.overrides, "descriptions=" + json.dumps(told)])
    if options.draw_file:
        drawn: Draw | None = read_draw(options.draw_file, dataset)
    else:
        drawn = draw(dataset, options.shots, options.seed) if options.shots else None
    if drawn:
        console.print(drawn.describe())
        dataset = drawn.apply(dataset)
    used, whole = len(dataset.train), len(dataset.whole.train)
    left = f"; {whole - used:,} are left (--shots 0 takes all)" if used < whole else ""
    console.print(f"fitting to {used:,} of {whole:,} training images{left}")
    if options.calibrate:
        check_temperature(dataset, options.kind)
    bank, views = FeatureBank(options.tower, progress=main), _views(options.views)
    if options.method == AUTO and not dataset.multi_label:
        options = replace(options, method=_best_method(options, dataset, bank, console))
    pool = read_unlabelled(
        options.unlabelled, options.tower, data=options.data, allow_urls=options.allow_urls
    )
    if pool:
        pool = without_copies(pool, dataset, bank, console)
    unlabelled = pool.images if pool else None
    if options.dry_run:
        model = TunedModel.fit(
            dataset, bank, options.kind, options.config,
            seed=options.seed, views=views, max_steps=1, announce=options.announce, unlabelled=unlabelled,
        )  # fmt: skip
        distributed.stop()
        losses = ", ".join(f"{name} {value:.4g}" for name, value in model.terms.items())
        did = "one step taken" if model.method.stepwise else "fitted"
        console.print(f"dry run: {did}, nothing written{f' ({losses})' if losses else ''}")
        return
    try:
        model = fit_into(
            options.out, dataset, bank, options.kind, options.config,
            seed=options.seed, views=views, max_steps=options.max_steps,
            temperature=options.calibrate, announce=options.announce, about={"options": asked},
            unlabelled=unlabelled,
        )  # fmt: skip
    except KeyboardInterrupt:
        console.print(stopped_words(checkpoint_step(options.out)))
        raise
    distributed.stop()
    if main:
        tell_of_pool(pool, model, options.pseudo_labels, console)
        _print_outcome(options, model, dataset, console)


def _best_method(options: FitOptions, dataset: "Dataset", bank: "FeatureBank", console: "Console") -> str:
    """The best by left-out images; all are printed."""
    from pbprompt.cli.evaluate import figures_table
    from pbprompt.model.scoring import leaderboard

    console.print("auto: fitting each method to four fifths of the training images, five times")
    train = bank.encode(dataset.root, dataset.train)
    found = leaderboard(options.tower, dataset.classes, dataset.template, train, options.seed)
    if not found:
        console.print("auto: no class has two images to leave one out of: conjugate it is")
        return "conjugate"
    console.print(figures_table(found))
    best = next(iter(found))
    console.print(f"auto: {best} has the best likelihood on training images that were left out")
    return best


def _print_outcome(options: FitOptions, model: "TunedModel", few: "Dataset", console: "Console") -> None:
    """Figures, what they lack, and how far the model can be trusted."""
    from pbprompt.cli.evaluate import print_figures, twin_words
    from pbprompt.features.bank import FeatureBank
    from pbprompt.findings.duplicates import twins
    from pbprompt.model.scoring import probe_is_quick

    if model.info.metrics:
        print_figures(model.info.metrics)
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
    if not model.multi_label and (words := name_words(model.method)):
        console.print(words)
    console.print(threshold_words(model) if model.multi_label else calibration_words(model.calibration))
    console.print(f"saved: {options.out}")


def fit_console() -> "Console":
    """For people, beside the output; of several processes, the first one's alone."""
    from rich.console import Console

    from pbprompt import distributed

    return Console(
        stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=not distributed.is_main()
    )


def stopped_words(step: int | None) -> str:
    """What the same command does after Ctrl-C."""
    if not step:
        return "stopped before the first step: the same command starts again; encoded images are kept"
    return f"stopped: the same command continues from step {step:,}"


def parameters(method: "Method") -> str:
    """Learnable parameters, as the paper counts them and in full."""
    full = sum(parameter.numel() for parameter in method.parameters())
    counted = method.counted_parameters()
    extra = "" if counted == full else f" as the paper counts ({full:,} in full)"
    towers = method.backbone
    note = "" if towers.reads_text else f"; {towers.config.name} reads no text: class names count for nothing"
    return f"{method.name}: {counted:,} learnable parameters{extra}{note}"


def _views(text: str) -> "Views":
    if text in ("centre", "fresh"):
        return text  # type: ignore[return-value]
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise InputError(f"--views {text[:20]!r}: use centre, fresh or a number of draws up to 999")
    return int(text)
