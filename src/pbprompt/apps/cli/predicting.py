"""What `predict` does: a model answers a stream; the answers are shown, or written and gone on with."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
import typer

from pbprompt.apps.batch.job import CACHED_UNITS, BatchJob, Executor, answers, here, run
from pbprompt.apps.batch.on_ray import on_ray, sent
from pbprompt.apps.batch.output import Output
from pbprompt.apps.batch.pool import read_pool
from pbprompt.apps.cli.calibration_words import FIT_AGAIN, answer_words, mix_words, shortened
from pbprompt.apps.cli.options import refuse
from pbprompt.apps.cli.output import next_step, print_json, print_table, quote, tell
from pbprompt.apps.cli.predict import REJECT_AT, SHARES, PredictOptions
from pbprompt.errors import InputError, needing
from pbprompt.learners.fitted import Familiar
from pbprompt.learners.predictive import Prediction
from pbprompt.model.card import absorbed_by
from pbprompt.model.decisions import BALANCED, ESTIMATE, NO_RULE, TRAINED, Rule, read_costs, read_mix
from pbprompt.model.manifest import CALIBRATION
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.items import DEFAULT_TEMPLATE
from pbprompt.vision.images.names import distinct
from pbprompt.vision.images.records import MOST_WEB_BYTES
from pbprompt.vision.images.stream import Record, Stream
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.rounding import round_image_tower

STDIN = "-"


def answer(options: PredictOptions) -> None:
    """Answer the images as the options say."""
    output = output_of(options)
    stream = Stream(sources(options.images), allow_urls=options.allow_urls)
    stream.few(CACHED_UNITS)  # what is wrong with the first is told before a model is loaded
    tuned, rule = _zero_shot(options) if options.model is None else _tuned(options, options.model, stream)
    job = BatchJob.of(tuned, stream, rule, features=options.features)
    if output is None:
        print_answers(job, options)
        return
    write_answers(job, output, executor_of(options, tuned, rule))
    if options.model and tuned.calibration and tuned.class_mix is None and not options.together:
        command = f"pbprompt monitor {quote(options.out)} --model {quote(options.model)}"
        next_step(command, "whether they are like those at fit")


def _zero_shot(options: PredictOptions) -> tuple[TunedModel, Rule]:
    refuse(options, SHARES, "rests on labelled images", "give --model DIR")
    refuse(options, "together", "names alone learn by `pbprompt fit --unlabelled`", "give --model DIR")
    refuse(options, "costs class_mix", "names alone know of no training images", "give --model DIR")
    if not options.names:
        raise InputError("no class names: give --classes cat,dog,car, --classes-file FILE or --model DIR")
    tower = load_backbone(options.backbone or "lite", activation=options.activation, device=options.device)
    _approximated(options, tower)
    names, sentence = distinct(options.names), options.template or DEFAULT_TEMPLATE
    return TunedModel.zero_shot(tower, names, sentence, independent=options.independent), NO_RULE


def _approximated(options: PredictOptions, *towers: Backbone) -> None:
    """Let the towers, or both views of the same, see by the approximate ways that are asked for."""
    for tower in (one for given in towers for one in (given, *given.towers)):
        tower.preprocess = replace(tower.preprocess, fast=options.fast_resize)
    if options.precision == "bfloat16":
        round_image_tower(towers[0])


def _tuned(options: PredictOptions, folder: Path, stream: Stream) -> tuple[TunedModel, Rule]:
    """The saved model with the names asked for, and its rule; what that can promise is told."""
    alone = "a fitted model tells its classes from each other, so that none has a probability of its own"
    refuse(options, "independent", alone, "leave out --model")
    samples, seed = options.samples, options.seed
    model = TunedModel.load(folder, options.backbone, options.device, samples=samples, seed=seed)
    _approximated(options, model.backbone, model.method.given)
    if model.multi_label:
        why = f"{folder} is multi-label: each label has a threshold of its own"
        refuse(options, f"{SHARES} classes classes_file template class_mix costs per_class together", why)
        return model, NO_RULE
    if options.none_at is not None:
        if not isinstance(model.method.fitted, Familiar):
            raise InputError(f"--none-at: {model.method.name} cannot tell: fit with --method conjugate")
        none = torch.empty(0, model.backbone.embed_dim, device=model.backbone.device)
        if model.method.fitted.familiarity(Encoded(none, none.unsqueeze(1))) is None:
            few = f"{folder} was fitted on too few photographs to tell"
            raise InputError(f"--none-at: {few}: it needs at least 19 that are not their class's only one")
    other_template = options.template not in (None, model.info.template)
    if options.names or other_template:
        names = distinct([*model.classes, *options.names])
        model = model.for_classes(names, options.template).with_left_out()
    if options.together:
        model = seen_together(model, stream)
    model = for_class_mix(model, options.class_mix, stream)
    if options.costs:
        refuse(options, "back_off", "--costs chooses the answers")
        model = model.for_costs(read_costs(options.costs, model.classes))
    reject_at, back_off = options.reject_at, options.back_off
    if model.calibration and reject_at is None and math.isfinite(model.calibration.promised(REJECT_AT)[1]):
        reject_at = REJECT_AT
    if model.calibration is None:
        resting = f"{folder}: no {CALIBRATION} in it, which this rests on"
        refuse(options, "reject_at coverage back_off", resting, FIT_AGAIN)
    rule = model.rule(
        reject_at, options.coverage, options.none_at, per_class=options.per_class, back_off=back_off
    )
    for words in answer_words(model, rule, options, other_template):
        tell(words)
    return model, rule


def seen_together(model: TunedModel, stream: Stream) -> TunedModel:
    """The model having seen all images of a stream, with a word on what that changes."""
    pool = read_pool(model.backbone, stream)
    after = model.together(pool.images)
    labels = [[one.label for one in each.predict(pool.encoded)] for each in (model, after)]
    changed = sum(one != other for one, other in zip(*labels, strict=True))
    found = absorbed_by(after.method)
    if found is None or not found.weight:
        tell(f"together: {len(pool.names):,} images would not help each other, so that nothing changes")
        return model
    strange = len(pool.names) - int(found.familiar.sum())
    tell(
        f"together: {len(pool.names):,} images inform each other; {changed:,} labels change; {strange:,} "
        "look like none of the classes, and take no part"
    )
    return after


def for_class_mix(model: TunedModel, how: str, stream: Stream | None = None) -> TunedModel:
    """The model for classes as frequent as --class-mix says; an estimate is told."""
    if how in (TRAINED, BALANCED):
        return model if how == TRAINED else model.for_class_mix(how)
    if how == ESTIMATE and stream is not None:
        pool = read_pool(model.backbone, stream)
        mix = model.estimated_mix(pool.encoded)
        tell(f"class mix, estimated from {len(pool.names):,} images: {mix_words(mix, model)}")
        return model.for_class_mix(mix)
    if not Path(how).exists():
        choices = [TRAINED, BALANCED] + [ESTIMATE] * (stream is not None)
        raise InputError(f"--class-mix {how}: choose {', '.join(choices)}, or give a file")
    return model.for_class_mix(read_mix(Path(how), model.classes))


def print_answers(job: BatchJob, options: PredictOptions) -> None:
    """Each as a line of JSON, or all in a table; exit code 1: some images could not be read."""
    rows: list[tuple[str, Prediction]] = []
    images = failures = 0
    for answer in answers(job, progress=not options.as_json):
        images += 1
        if isinstance(answer.said, InputError):
            failures += 1
            tell(answer.said)
        elif options.as_json:
            how = {"approximate": job.approximate} if job.approximate else {}
            print_json({"image": answer.name, **answer.said.to_dict(), **how})
        else:
            rows.append((answer.name, answer.said))
    if rows:
        _print_table(rows, options.top_k, tuned=options.model is not None)
    if failures:
        tell(f"{failures} of {images} images could not be read")
        raise typer.Exit(1)


def _print_table(rows: list[tuple[str, Prediction]], top_k: int, tuned: bool) -> None:
    first = rows[0][1]
    shown = min(top_k, len(first.scores))
    lines: list[dict[str, str]] = []
    for name, one in rows:
        line = {"image": name}
        if one.labels is not None:
            line["labels"] = ", ".join(one.labels) or "–"
        likeliest = enumerate(one.likeliest(shown), 1)
        line |= {f"{place}.": f"{label} {score:.1%}" for place, (label, score) in likeliest}
        if tuned and one.labels is None:
            marks = {"unsure": one.unsure, "none of these": one.unknown, "nothing to see": one.nothing}
            line["doubt"] = f"{math.exp(one.entropy):.1f}"
            line[""] = ", ".join(mark for mark, holds in marks.items() if holds)
        if one.answer is not None:
            node, score = one.answer
            line["answer"] = f"{node} {score:.1%}" if node else "unsure"
        if one.prediction_set is not None:
            line["set"] = shortened(one.prediction_set)
        lines.append(line)
    print_table(list(lines[0]), [list(line.values()) for line in lines], paths=("image",))


def write_answers(job: BatchJob, output: Output, executor: Executor) -> None:
    """Write the answers, or what an earlier process left of them, and say so; exit code 1: some failed."""
    with output.opened(job.identity(output.suffix)):
        before = output.rows + output.failures
        if output.damaged:
            tell(f"{output.damaged:,} parts of {output.path} were changed or removed: they are made again")
        if output.complete(job.stream.units()):
            tell(f"{output.path} is complete already")
        else:
            if before:
                tell(f"going on after the {before:,} images that are answered already")
            try:
                run(job, output, executor, progress=True)
            except KeyboardInterrupt:
                done = output.rows + output.failures
                tell(f"stopped after {done:,} images: the same command goes on from there")
                raise
        rows, failures = output.rows, output.failures
        if rows:
            tell(f"saved: {output.path}, with {rows:,} answer{'s' if rows > 1 else ''}")
        if failures:
            where = output.failed_path if output.whole else f"{output.path}/_failed-*{output.suffix}"
            tell(f"{failures:,} of {rows + failures:,} images could not be read: {where} says why")
            raise typer.Exit(1)


def output_of(options: PredictOptions) -> Output | None:
    """Where to write, if anywhere; options that contradict each other are refused."""
    if options.executor == "local":
        refuse(options, "ray_address", "is for --executor ray")
    else:
        refuse(options, "fast_resize precision together", "is for --executor local")
    if options.coverage is None:
        refuse(options, "per_class", "says how --coverage is meant", "give both")
    if options.out is None:
        refuse(options, "features executor", "says how --out is written", "give both")
        return None
    refuse(options, "as_json", "prints answers and --out writes them")
    try:
        return Output(options.out)
    except InputError as error:
        raise InputError(f"--out {error}") from None


def executor_of(options: PredictOptions, model: TunedModel, rule: Rule) -> Executor:
    """What makes the parts; to other machines the model is sent."""
    if options.executor == "local":
        return here
    with needing("--executor ray needs Ray Data (local does not)", "ray"):
        import_module("ray.data")
    load = sent(model, options.backbone, options.device, rule)
    return partial(on_ray, options.ray_address, load, options.device)


def sources(words: Sequence[str]) -> list[str | Record]:
    """What comes from standard input is read."""
    if words.count(STDIN) > 1:
        raise InputError(f"{STDIN} is given twice: standard input holds one image")
    return [word if word != STDIN else Record(STDIN, _read_stdin()) for word in words]


def _read_stdin() -> bytes | InputError:
    if sys.stdin.isatty():
        return InputError(f"{STDIN}: standard input is a terminal: pipe an image in, such as `< photo.jpg`")
    content = sys.stdin.buffer.read(MOST_WEB_BYTES + 1)
    if not content:
        return InputError(f"{STDIN}: nothing came from standard input: pipe an image in")
    if len(content) > MOST_WEB_BYTES:
        most = f"more than {MOST_WEB_BYTES >> 20} MiB"
        return InputError(f"{STDIN}: {most} came from standard input: give one image")
    return content
