"""`pbprompt predict`: name what is in images."""

import math
import sys
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pbprompt.cli.batch import executor_named, output_of, print_answers, sources, written
from pbprompt.cli.calibration_words import (
    REJECT_AT,
    difference_words,
    full_set_words,
    promise_words,
    shortened,
)
from pbprompt.cli.options import with_options
from pbprompt.cli.output import refuse, tell
from pbprompt.data.items import DEFAULT_TEMPLATE
from pbprompt.errors import InputError
from pbprompt.files import read_text

if TYPE_CHECKING:
    from pbprompt.model.predictions import Prediction, Rule
    from pbprompt.model.tuned import TunedModel


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Which images, by which model, and what to say of them."""

    images: list[str] = typer.Argument(
        ...,
        help="Image files, folders, globs, tables (.csv, .jsonl), .parquet and .tar files, addresses of "
        "these; - is an image from standard input.",
    )
    classes: str = typer.Option("", "--classes", "-c", help="Class names, separated by commas.")
    classes_file: Path | None = typer.Option(None, help="A file, one class name a line.")
    model: Path | None = typer.Option(None, help="A folder that `pbprompt fit` wrote; --classes adds to it.")
    template: str | None = typer.Option(
        None, help=f"Sentence around a name; {{}} is the name. [{DEFAULT_TEMPLATE}]"
    )
    backbone: str | None = typer.Option(
        None, help="lite (default), lite-vit, OpenAI name, file, folder, hub id."
    )
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell.")
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class of a tuned model.")
    seed: int = typer.Option(0, help="Seed of the sampled prompts.")
    top_k: int = typer.Option(3, min=1, help="How many classes to show for each image.")
    reject_at: float | None = typer.Option(
        None, help=f"Mark as unsure so that the others are this accurate, with 90 % certainty. [{REJECT_AT}]"
    )
    coverage: float | None = typer.Option(
        None, help="Give sets of classes that hold the true one this often, such as 0.9."
    )
    per_class: bool = typer.Option(
        False, "--per-class", help="Hold --coverage for the images of every class, not on average."
    )
    none_at: float | None = typer.Option(
        None,
        help="Mark what looks like none of the classes, wrongly so for this share of their images: 0.05.",
    )
    together: bool = typer.Option(
        False,
        "--together",
        help="Let the images inform each other: all are read before the first is answered. With --model.",
    )
    independent: bool = typer.Option(
        False,
        "--independent",
        help="Each name by itself: an image may show several or none. Without --model; SigLIP only.",
    )
    as_json: bool = typer.Option(False, "--json", help="A JSON object per line: image, label, score, …")
    out: str | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Write the fields of --json to a .csv, .jsonl or .parquet file; with a slash behind, to a "
        "folder of such files.",
    )
    features: bool = typer.Option(False, "--features", help="With --out: each image's features too.")
    allow_urls: bool = typer.Option(
        False, "--allow-urls", help="Fetch what addresses name: http, https, and with extras s3, gs, …"
    )
    executor: str = typer.Option("local", help="What answers, with --out: local, or ray on many machines.")
    ray_address: str | None = typer.Option(None, help="A running cluster (default: one is started here).")

    @cached_property
    def names(self) -> list[str]:
        return class_names(self.classes, self.classes_file)

    def __post_init__(self) -> None:
        if self.template is not None and "{}" not in self.template:
            raise InputError(f"--template {self.template!r} has no {{}}: write where the class name goes")
        for option, share in self.shares().items():
            if share is not None and not 0 < share < 1:
                raise InputError(f"{option} {share:g}: give a share between 0 and 1, such as 0.9")

    def shares(self) -> dict[str, float | None]:
        return {"--reject-at": self.reject_at, "--coverage": self.coverage, "--none-at": self.none_at}

    def of_one_label(self) -> dict[str, object]:
        """What a multi-label model has no use for; None where it was not given."""
        return {
            **self.shares(),
            "--classes": self.names or None,
            "--template": self.template,
            "--per-class": self.per_class or None,
            "--together": self.together or None,
        }


@with_options(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Classify images by class names alone (zero-shot), or with a tuned model and its uncertainty.

    [bold]pbprompt predict photo.jpg --classes cat,dog,car[/bold]

    [bold]pbprompt predict holiday/ --model model/ --reject-at 0.95 --coverage 0.9[/bold]

    With a model, `doubt` is the number of equally likely classes between which it would be as undecided:
    1.0 is sure. (`--json` has the `entropy`, its logarithm, and `epistemic`, the part of it that more
    photographs may settle.) An image is `unsure` where its top probability is below a threshold: images
    above it, if they are like the validation images, are right as often as --reject-at asks, with 90 %
    certainty. Where so few images can promise no such thing, all are unsure if --reject-at was given.
    --coverage lists the classes an image may be of: the true one is among them at least that often, on
    average over images or, with --per-class, for the images of each class. --none-at 0.05 marks what looks
    like none of the classes (five in a hundred images of the classes are marked too), where the method can
    tell. An image that cannot be read is reported and skipped; exit code 1. Features of some thousand files
    are kept in the cache, so that images of before need not be encoded again.

    --together takes the images as unlabelled evidence of the classes (docs/unlabelled.md): their answers then
    depend on each other, and it is told how many changed.

    A multi-label model says which of its labels each image has, perhaps none.

    With --out the images may be millions: they are read as a stream, and where the command is ended, however
    that may be, the same command goes on. Images that cannot be read are listed beside the answers, in
    `answers.failed.csv`.

    [bold]pbprompt predict photos/ shards/*.tar --model model/ --out answers.parquet[/bold]
    """
    from pbprompt.batch import CACHED_UNITS, Job
    from pbprompt.batch.on_ray import sent
    from pbprompt.data.stream import Stream

    output = output_of(options.out, options.as_json, options.features, options.executor, options.ray_address)
    stream = Stream(sources(options.images, options.allow_urls), allow_urls=options.allow_urls)
    stream.few(CACHED_UNITS)  # what is wrong with the first is told before a model is loaded
    choose = partial(executor_named, options.executor, options.ray_address, options.device)
    model, backbone, device, features = options.model, options.backbone, options.device, options.features
    tuned, rule = _zero_shot(options) if model is None else _tuned(options, model, stream)
    job = Job.of(tuned, stream, rule, features=features)
    if output is not None:
        written(job, output, choose(lambda: sent(tuned, backbone, device, rule)))
        return
    print_answers(
        job, options.as_json, lambda rows: _print_table(rows, options.top_k, tuned=model is not None)
    )


def _zero_shot(options: PredictOptions) -> "tuple[TunedModel, Rule]":
    from pbprompt.clip.loading.load import load_backbone
    from pbprompt.model.predictions import NO_RULE
    from pbprompt.model.tuned import TunedModel

    if any(share is not None for share in options.shares().values()):
        raise InputError("--reject-at, --coverage and --none-at rest on labelled images: give --model DIR")
    if options.together:
        raise InputError("--together: give --model DIR; names alone learn with `pbprompt fit --unlabelled`")
    if not options.names:
        raise InputError("no class names: give --classes cat,dog,car, --classes-file FILE or --model DIR")
    tower = load_backbone(options.backbone or "lite", activation=options.activation, device=options.device)
    sentence = options.template or DEFAULT_TEMPLATE
    names = distinct(options.names)
    return TunedModel.zero_shot(tower, names, sentence, independent=options.independent), NO_RULE


def _tuned(options: PredictOptions, folder: Path, stream: "Stream") -> "tuple[TunedModel, Rule]":
    """The saved model with the names asked for, and its rule; what that can promise is told."""
    from pbprompt.cli.unlabelled import seen_together
    from pbprompt.methods.abilities import TellsFamiliarity, can
    from pbprompt.model.predictions import NO_RULE
    from pbprompt.model.tuned import TunedModel

    if options.independent:
        raise InputError(
            "--independent: a fitted model tells its classes from each other, so that no class has a "
            "probability of its own: leave out --model, or leave out --independent"
        )
    samples, seed = options.samples, options.seed
    model = TunedModel.load(folder, options.backbone, options.device, samples=samples, seed=seed)
    if model.multi_label:
        refuse(options.of_one_label(), f"{folder} is multi-label: each label has a threshold of its own")
        return model, NO_RULE
    if options.none_at is not None:
        if not can(model.method, TellsFamiliarity):
            raise InputError(f"--none-at: {model.method.name} cannot tell: fit with --method conjugate")
        if not model.method.has_enough_to_tell():
            raise InputError(
                f"--none-at: {folder} was fitted on too few photographs to tell: it needs at least "
                "19 that are not their class's only one"
            )
    if options.per_class and options.coverage is None:
        raise InputError("--per-class says how --coverage is meant: give both")
    other_template = options.template not in (None, model.info.template)
    if options.names or other_template:
        names = distinct([*model.classes, *options.names])
        model = model.for_classes(names, options.template).with_left_out()
    if options.together:
        refuse({"--executor": None if options.executor == "local" else options.executor}, "--together")
        model = seen_together(model, stream)
    notes = promise_words(folder, model.calibration, options.reject_at, options.coverage)
    notes += difference_words(model, bool(options.names), other_template)
    reject_at = options.reject_at
    if model.calibration and reject_at is None and math.isfinite(model.calibration.promised(REJECT_AT)[1]):
        reject_at = REJECT_AT
    rule = model.rule(reject_at, options.coverage, options.none_at, per_class=options.per_class)
    if isinstance(rule.quantile, tuple):
        notes += full_set_words(model, rule.quantile)
    for note in notes:
        tell(note)
    return model, rule


def class_names(classes: str, classes_file: Path | None) -> list[str]:
    """The names given on the command line or in a file."""
    if classes and classes_file:
        raise InputError("--classes and --classes-file both given: choose one")
    given = classes.split(",") if classes_file is None else read_text(classes_file).splitlines()
    return [" ".join(name.split()) for name in given if name.strip()]


def distinct(names: list[str]) -> list[str]:
    """The names, refused where two are one class."""
    from pbprompt.data.names import name_key

    seen: dict[str, str] = {}
    for name in names:
        key = name_key(name)
        if key in seen:
            raise InputError(f"class names {seen[key]!r} and {name!r} are the same: name each class once")
        seen[key] = name
    return names


def _print_table(rows: list[tuple[str, "Prediction"]], top_k: int, tuned: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    first = rows[0][1]
    shown = min(top_k, len(first.scores))
    columns = [f"{place}." for place in range(1, shown + 1)]
    labelled = first.labels is not None
    tuned = tuned and not labelled
    columns += ["doubt", ""] if tuned else []
    columns += ["set"] if first.prediction_set is not None else []
    front = [Column(name, overflow="fold") for name in (("image", "labels") if labelled else ("image",))]
    table = Table(*front, *columns, box=None)
    for name, answer in rows:
        cells = [", ".join(answer.labels or ()) or "–"] if labelled else []
        cells += [f"{label} {score:.1%}" for label, score in answer.likeliest(shown)]
        if tuned:
            marks = ["unsure"] * bool(answer.unsure) + ["none of these"] * bool(answer.unknown)
            cells += [f"{math.exp(answer.entropy):.1f}", ", ".join(marks)]
        if answer.prediction_set is not None:
            cells.append(shortened(answer.prediction_set))
        table.add_row(name, *cells)
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no screen to fit
    Console(width=wide, markup=False, highlight=False).print(table)
