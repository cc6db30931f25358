"""`pbprompt predict`: name what is in images."""

import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.cli.batch import executor_named, output_of, print_answers, tell, written
from pbprompt.cli.given_images import sources
from pbprompt.data.items import DEFAULT_TEMPLATE
from pbprompt.errors import InputError
from pbprompt.files import read_text

if TYPE_CHECKING:
    from pbprompt.model.calibration import Calibration
    from pbprompt.model.predictions import Prediction, Rule
    from pbprompt.model.tuned import TunedModel

SHOWN_OF_A_SET = 5
REJECT_AT = 0.9


def predict(
    images: list[str] = typer.Argument(
        ...,
        help="Image files, folders, globs, tables (.csv, .jsonl), .parquet and .tar files, addresses of "
        "these; - is an image from standard input.",
    ),
    classes: str = typer.Option("", "--classes", "-c", help="Class names, separated by commas."),
    classes_file: Path | None = typer.Option(None, help="A file, one class name a line."),
    model: Path | None = typer.Option(None, help="A folder that `pbprompt fit` wrote; --classes adds to it."),
    template: str | None = typer.Option(
        None, help=f"Sentence around a name; {{}} is the name. [{DEFAULT_TEMPLATE}]"
    ),
    backbone: str | None = typer.Option(None, help="lite (default), an OpenAI name, a file, folder, hub id."),
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell."),
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N."),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class of a tuned model."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts."),
    top_k: int = typer.Option(3, min=1, help="How many classes to show for each image."),
    reject_at: float | None = typer.Option(
        None, help=f"Mark as unsure so that the others are this accurate, with 90 % certainty. [{REJECT_AT}]"
    ),
    coverage: float | None = typer.Option(
        None, help="Give sets of classes that hold the true one this often, such as 0.9."
    ),
    per_class: bool = typer.Option(
        False, "--per-class", help="Hold --coverage for the images of every class, not on average."
    ),
    none_at: float | None = typer.Option(
        None,
        help="Mark what looks like none of the classes, wrongly so for this share of their images: 0.05.",
    ),
    independent: bool = typer.Option(
        False,
        "--independent",
        help="Each name by itself: an image may show several or none. Without --model; SigLIP only.",
    ),
    as_json: bool = typer.Option(False, "--json", help="A JSON object per line: image, label, score, …"),
    out: str | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Write the fields of --json to a .csv, .jsonl or .parquet file; with a slash behind, to a "
        "folder of such files.",
    ),
    features: bool = typer.Option(False, "--features", help="With --out: each image's features too."),
    allow_urls: bool = typer.Option(
        False, "--allow-urls", help="Fetch what addresses name: http, https, and with extras s3, gs, …"
    ),
    executor: str = typer.Option("local", help="What answers, with --out: local, or ray on many machines."),
    ray_address: str | None = typer.Option(None, help="A running cluster (default: one is started here)."),
) -> None:
    """Classify images by class names alone (zero-shot), or with a tuned model and its uncertainty.

    [bold]pbprompt predict photo.jpg --classes cat,dog,car[/bold]

    [bold]pbprompt predict holiday/ --model model/ --reject-at 0.95 --coverage 0.9[/bold]

    With a model, `entropy` is the whole doubt about an image in nats and `epistemic` the part of it that the
    sampled prompts disagree on. An image is `unsure` where its top probability is below a threshold: images
    above it, if they are like the validation images, are right as often as --reject-at asks, with 90 %
    certainty. Where so few images can promise no such thing, all are unsure if --reject-at was given.
    --coverage lists the classes an image may be of: the true one is among them at least that often, on
    average over images or, with --per-class, for the images of each class. --none-at 0.05 marks what looks
    like none of the classes (five in a hundred images of the classes are marked too), where the method can
    tell. An image that cannot be read is reported and skipped; exit code 1. Features of some thousand files
    are kept in the cache, so that images of before need not be encoded again.

    A model that was fitted to several labels an image says which of them each has, perhaps none.

    With --out the images may be millions: they are read as a stream, and where the command is ended, however
    that may be, the same command goes on. Images that cannot be read are listed beside the answers, in
    `answers.failed.csv`.

    [bold]pbprompt predict photos/ shards/*.tar --model model/ --out answers.parquet[/bold]
    """
    from pbprompt.batch.job import Job
    from pbprompt.batch.on_ray import SentModel
    from pbprompt.cli.multi_label import predict_labels, refuse
    from pbprompt.clip.loading.load import load_backbone
    from pbprompt.data.stream import Stream
    from pbprompt.methods.abilities import TellsFamiliarity, can
    from pbprompt.model.manifest import has_several_labels
    from pbprompt.model.tuned import TunedModel

    if template is not None and "{}" not in template:
        raise InputError(f"--template {template!r} has no {{}}: write where the class name goes")
    for option, share in (("--reject-at", reject_at), ("--coverage", coverage), ("--none-at", none_at)):
        if share is not None and not 0 < share < 1:
            raise InputError(f"{option} {share:g}: give a share between 0 and 1, such as 0.9")
    output = output_of(out, as_json, features, executor, ray_address)
    names = class_names(classes, classes_file)
    stream = Stream(sources(images, allow_urls), allow_urls=allow_urls)
    next(stream.units())  # what is wrong with the first is told before a model is loaded
    choose = partial(executor_named, executor, ray_address, device)
    if model is None:
        if any(share is not None for share in (reject_at, coverage, none_at)):
            raise InputError(
                "--reject-at, --coverage and --none-at rest on labelled images: give --model DIR"
            )
        if not names:
            raise InputError("no class names: give --classes cat,dog,car, --classes-file FILE or --model DIR")
        tower = load_backbone(backbone or "lite", activation=activation, device=device)
        sentence = template or DEFAULT_TEMPLATE
        tuned = TunedModel.zero_shot(tower, distinct(names), sentence, independent=independent)
    elif has_several_labels(model):
        asked: dict[str, object] = {"--reject-at": reject_at, "--coverage": coverage, "--none-at": none_at}
        asked |= {"--classes": names or None, "--template": template, "--per-class": per_class or None}
        asked |= {"--independent": independent or None}
        refuse(asked, f"{model} gives several labels an image, each by a threshold of its own")
        predict_labels(model, stream, backbone, device, top_k, as_json, features, output, choose)
        return
    else:
        if independent:
            raise InputError(
                "--independent: a fitted model tells its classes from each other, so that no class has a "
                "probability of its own: leave out --model, or leave out --independent"
            )
        tuned = TunedModel.load(model, backbone, device, samples=samples, seed=seed)
        if none_at is not None and not can(tuned.method, TellsFamiliarity):
            raise InputError(f"--none-at: {tuned.method.name} cannot tell: fit with --method conjugate")
        if per_class and coverage is None:
            raise InputError("--per-class says how --coverage is meant: give both")
        other_template = template not in (None, tuned.info.template)
        if names or other_template:
            tuned = tuned.for_classes(distinct([*tuned.classes, *names]), template).with_left_out()
        notes = _notes(model, tuned.calibration, reject_at, coverage)
        if tuned.calibration and reject_at is None and math.isfinite(tuned.calibration.threshold(REJECT_AT)):
            reject_at = REJECT_AT
        for note in (*notes, *_differences(tuned, bool(names), other_template)):
            tell(note)
    rule = tuned.rule(reject_at, coverage, none_at, per_class=per_class)
    if per_class and isinstance(rule.quantile, tuple):
        _tell_full(tuned, rule.quantile)
    job = Job(tuned.backbone, partial(tuned.predict, rule=rule), stream, _settings(tuned, rule), features)
    if output is not None:
        written(job, output, choose(lambda: SentModel.of(tuned, backbone, device, rule)))
        return
    print_answers(job, as_json, lambda rows: _print_table(rows, top_k, tuned=model is not None))


def _settings(tuned: "TunedModel", rule: "Rule") -> dict[str, Any]:
    """What decides the answers, by which a job is known."""
    from pbprompt.batch.job import method_identity

    return {
        "model": method_identity(tuned.method),
        "samples": [tuned.samples, tuned.seed],
        "temperature": tuned.info.temperature,
        "independent": tuned.independent,
        "rule": asdict(rule),
    }


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


def _notes(
    model: Path, calibration: "Calibration | None", reject_at: float | None, coverage: float | None
) -> list[str]:
    """What the user should know of what the options ask of the model's validation images."""
    from pbprompt.evaluate.conformal import fewest_images
    from pbprompt.evaluate.selective import fewest_right
    from pbprompt.model.calibration import CERTAINTY
    from pbprompt.model.manifest import CALIBRATION

    if calibration is None:
        remedy = "fit it again on data with validation images (a val/ folder)"
        if reject_at is not None or coverage is not None:
            raise InputError(
                f"{model}: no {CALIBRATION} in it, which --reject-at and --coverage rest on: {remedy}"
            )
        return [f"{model}: no {CALIBRATION} in it, so no image is marked unsure: {remedy}"]
    accuracy = REJECT_AT if reject_at is None else reject_at
    threshold, images = calibration.threshold(accuracy), len(calibration)
    accepted = calibration.accepted(threshold)
    if accepted.images:
        notes = [
            f"unsure: top probability below {threshold:.3f}; the others are right {accuracy:.0%} of the "
            f"time, with {CERTAINTY:.0%} certainty, by {calibration.rests_on} ({accepted.images} above, "
            f"{accepted.right / accepted.images:.1%} right)"
        ]
    else:
        so = "no image is marked unsure" if reject_at is None else "every image is marked unsure"
        takes = int(fewest_right(accuracy, CERTAINTY))
        found = ""
        if takes <= images:  # enough of them, but with mistakes that it is sure of
            surest = calibration.surest(takes)
            wrong = surest.images - surest.right
            found = f"; of the {surest.images} it is surest of, {wrong} {'is' if wrong == 1 else 'are'} wrong"
        notes = [
            f"warning: --reject-at {accuracy:g} cannot be promised with {CERTAINTY:.0%} certainty by "
            f"{calibration.rests_on} (it takes {takes} accepted ones, if all are right{found}), so {so}"
        ]
    if coverage is not None and math.isinf(calibration.quantile(coverage)):
        notes.append(
            f"warning: --coverage {coverage:g} takes {fewest_images(coverage):,} images and there are "
            f"{images}, so every set holds all classes"
        )
    return notes


def _tell_full(tuned: "TunedModel", quantiles: tuple[float, ...]) -> None:
    """Say which classes are in every set for want of images."""
    always = [name for name, q in zip(tuned.classes, quantiles, strict=True) if math.isinf(q)]
    if always:
        tell(
            f"warning: {len(always)} of {len(quantiles)} classes have too few validation images of their own "
            f"and are in every set: {_shortened(tuple(always))}"
        )


def _differences(tuned: "TunedModel", added: bool, other_template: bool) -> list[str]:
    """In what the validation images were answered otherwise than these will be."""
    calibration, notes = tuned.calibration, []
    if calibration is None:
        return []
    if added:
        notes.append("warning: no validation image is of an added class: marks and sets cannot vouch for it")
    samples = tuned.predictor.bank.shape[0]
    other_seed = samples > 1 and tuned.seed != calibration.seed
    if samples != calibration.samples or other_seed or (other_template and calibration.source != "left out"):
        made = f"--samples {calibration.samples}, --seed {calibration.seed} and the model's template"
        notes.append(f"note: the thresholds were made with {made}; with others they are approximate")
    return notes


def _print_table(rows: list[tuple[str, "Prediction"]], top_k: int, tuned: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    first = rows[0][1]
    shown = min(top_k, len(first.scores))
    columns = [f"{place}." for place in range(1, shown + 1)]
    columns += ["entropy", "epistemic", ""] if tuned else []
    columns += ["set"] if first.prediction_set is not None else []
    table = Table(Column("image", overflow="fold"), *columns, box=None)
    for name, said in rows:
        cells = [f"{label} {score:.1%}" for label, score in said.likeliest(shown)]
        if tuned:
            marks = [mark for mark, on in (("unsure", said.unsure), ("none of these", said.unknown)) if on]
            cells += [f"{said.entropy:.3f}", f"{said.epistemic:.3f}", ", ".join(marks)]
        if said.prediction_set is not None:
            cells.append(_shortened(said.prediction_set))
        table.add_row(name, *cells)
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no screen to fit
    Console(width=wide, markup=False, highlight=False).print(table)


def _shortened(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN_OF_A_SET
    return ", ".join(names[:SHOWN_OF_A_SET]) + (f" and {more} more" if more > 0 else "")
