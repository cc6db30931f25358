"""`pbprompt fit`: tune a classifier on a few labelled images."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from pbprompt.methods.base import Method
    from pbprompt.model.calibration import Calibration
    from pbprompt.model.tuned import TunedModel
    from pbprompt.train.tune import Views


SHOTS = 16


def fit(
    data: str = typer.Argument(
        ...,
        help="A folder, table, split file, Parquet file, tar, glob or address; or a benchmark with --root.",
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the model."),
    method: str = typer.Option(
        "conjugate", help="conjugate (seconds), pbprompt (the paper's), …; `pbprompt methods` lists them."
    ),
    shots: int | None = typer.Option(
        None, min=0, help=f"Training images per class; 0: all. [{SHOTS}; of several labels an image: all]"
    ),
    seed: int = typer.Option(1, help="Seed of the draw, the start values and the training."),
    preset: str = typer.Option("default", help="A preset of the method, such as `paper`."),
    variant: str = typer.Option("", help="A variant of the method, such as `b-prompt`."),
    overrides: list[str] = typer.Option([], "--set", help="A setting as key=value; may be repeated."),
    backbone: str = typer.Option("lite", help="lite, an OpenAI name, a file, folder or hub id."),
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell."),
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N."),
    root: Path | None = typer.Option(None, help="Where the benchmarks are (or $PBPROMPT_DATA)."),
    classes_file: Path | None = typer.Option(None, help="Maps folder names or labels to class names."),
    draw_file: Path | None = typer.Option(None, "--draw", help="A draw file to train on instead of drawing."),
    views: str = typer.Option("centre", help="Training crops: centre, a number of random draws, or fresh."),
    max_steps: int | None = typer.Option(None, min=1, help="Stop after so many steps."),
    calibrate: bool = typer.Option(
        False, "--calibrate", help="Scale the probabilities by a temperature fitted to validation images."
    ),
    allow_urls: bool = typer.Option(False, "--allow-urls", help="Fetch the data where it is an address."),
    dry_run: bool = typer.Option(False, help="Say what would be trained, try one step, write nothing."),
) -> None:
    """Fit a classifier to a few labelled images and save it, with its figures on the test split.

    The default, `conjugate`, takes what a class's name says as a first guess and lets its photographs correct
    it: no training, seconds. [bold]--method pbprompt[/bold] tunes the paper's prompts, in minutes.

    Its figures stand beside those of zero-shot and of two plain classifiers of the same training images, the
    class mean and the linear probe: what tuning bought is seen at once.

    Validation images are not trained on: they tell `predict` when the model is unsure and, with
    [bold]--calibrate[/bold], how far to trust its probabilities.

    [bold]pbprompt fit photos/ --shots 16 --out model/[/bold]

    [bold]pbprompt fit caltech101 --root DATA --method pbprompt --preset paper --out model/[/bold]

    A table whose column is called `labels`, with cells such as beach|dog, gives an image several labels or
    none: [bold]pbprompt fit labels.csv --out model/[/bold] (docs/multi-label.md).

    Parquet files, WebDataset tars, addresses and, with --shots 0, folders of more than 65,536 images are read
    in one pass, in memory that does not grow with them:
    [bold]pbprompt fit 'shards/*.tar' --out model/[/bold] (docs/streaming-fit.md).

    Ctrl-C keeps a checkpoint: the same command continues from there. Under torchrun several processes share
    one run: [bold]torchrun --nproc-per-node 4 -m pbprompt fit …[/bold]
    """
    from rich.console import Console

    from pbprompt import distributed
    from pbprompt.cli.fit_stream import fit_streamed
    from pbprompt.cli.multi_label import fit_labels, refuse
    from pbprompt.clip.loading.load import load_backbone
    from pbprompt.data.fewshot import draw, read_draw, write_draw
    from pbprompt.data.multi_label import is_multi_label
    from pbprompt.data.sources import open_dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.methods.base import make_config
    from pbprompt.model.claim import check_free
    from pbprompt.model.rivals import probe_is_quick
    from pbprompt.model.streamed import is_stream
    from pbprompt.model.tuned import TunedModel, check_temperature
    from pbprompt.registry import find_method

    device = distributed.start(device)
    main = distributed.is_main()
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=not main)
    if not dry_run:
        check_free(out)
    kind = find_method(method)
    if not kind.trains:
        raise InputError(f"--method {method}: has nothing to tune: use `pbprompt predict` with --classes")
    config = make_config(kind, preset, variant, overrides)
    if is_multi_label(data):
        if distributed.world()[1] > 1:
            raise InputError(
                f"{data} has several labels an image, which one process fits: leave torchrun out"
            )
        refuse(
            {
                "--shots": shots,
                "--draw": draw_file,
                "--views": None if views == "centre" else views,
                "--max-steps": max_steps,
                "--calibrate": calibrate or None,
            },
            f"{data} has several labels an image, which are fitted in one step to all training images and "
            "calibrated by these, each left out",
        )
        fit_labels(
            data,
            out,
            kind,
            config,
            seed=seed,
            backbone=backbone,
            activation=activation,
            device=device,
            root=root,
            classes_file=classes_file,
            held=_held(out, console),
            dry_run=dry_run,
        )
        return
    if is_stream(data, every=shots == 0):
        refuse(
            {
                "--shots": shots or None,
                "--draw": draw_file,
                "--root": root,
                "--views": None if views == "centre" else views,
                "--max-steps": max_steps,
                "--calibrate": calibrate or None,
                "--dry-run": dry_run or None,
            },
            f"{data} is fitted in one pass over all its images",
        )
        tower = load_backbone(backbone, activation=activation, device=device)
        fit_streamed(
            data, out, kind, config, tower, console,
            seed=seed, classes_file=classes_file, allow_urls=allow_urls,
        )  # fmt: skip
        return
    shots = SHOTS if shots is None else shots
    dataset = open_dataset(data, root, classes_file=classes_file, seed=seed)
    console.print(dataset.describe())
    drawn = read_draw(draw_file, dataset) if draw_file else draw(dataset, shots, seed) if shots else None
    if drawn:
        console.print(drawn.describe())
    if calibrate:
        check_temperature(dataset, drawn, kind)
    bank = FeatureBank(load_backbone(backbone, activation=activation, device=device), progress=main)
    with nullcontext() if dry_run or not main else _held(out, console):
        model = TunedModel.fit(
            dataset,
            bank,
            kind,
            config,
            drawn=drawn,
            seed=seed,
            views=_views(views),
            folder=None if dry_run else out,
            max_steps=1 if dry_run else max_steps,
            announce=lambda method: console.print(parameters(checked_settings(method, overrides))),
        )
        if dry_run:
            losses = ", ".join(f"{name} {value:.4g}" for name, value in model.terms.items())
            distributed.stop()
            did = "one step taken" if model.method.stepwise else "fitted"
            console.print(f"dry run: {did}, nothing written{f' ({losses})' if losses else ''}")
            return
        model = model.checked(dataset, bank, drawn, temperature=calibrate)
        distributed.stop()
        if not main:
            return
        if drawn:
            write_draw(out / "draw.jsonl", drawn)
        model.save(out)
    if model.info.metrics:
        print_figures(model.info.metrics)
        few = drawn.apply(dataset) if drawn else dataset
        if method != "linear-probe" and not probe_is_quick(few, bank):
            console.print(
                f"no linear probe beside them, since {len(few.train):,} images of {len(few.classes):,} "
                "classes take it longer: --method linear-probe fits it"
            )
    if calibrate:
        console.print(tell_temperature(model))
    console.print(tell_calibration(model.calibration))
    console.print(f"saved: {out}")


@contextmanager
def _held(out: Path, console: "Console") -> Iterator[None]:
    """The folder for this run alone; Ctrl-C says where the same command goes on."""
    from pbprompt.model.claim import claim
    from pbprompt.train.checkpoint import checkpoint_step

    try:
        with claim(out):
            yield
    except KeyboardInterrupt:
        console.print(tell_stopped(checkpoint_step(out)))
        raise


def tell_stopped(step: int | None) -> str:
    """What the same command does after Ctrl-C."""
    if not step:
        return "stopped before the first step: the same command starts again; encoded images are kept"
    return f"stopped: the same command continues from step {step:,}"


def checked_settings(method: "Method", overrides: Sequence[str]) -> "Method":
    """The method, refused with settings of training that would change nothing, as it takes no steps."""
    from dataclasses import fields

    from pbprompt.methods.base import MethodConfig

    of_training = {field.name for field in fields(MethodConfig)}
    for word in overrides if not method.stepwise else ():
        if (key := word.partition("=")[0].strip()) in of_training:
            raise InputError(
                f"--set {key}: {method.name} takes no training steps, so that it would change nothing: leave "
                "it out, or choose a --method that is trained"
            )
    return method


def parameters(method: "Method") -> str:
    """Learnable parameters, as the paper counts them and in full."""
    full = sum(parameter.numel() for parameter in method.parameters())
    counted = method.counted_parameters()
    extra = "" if counted == full else f" as the paper counts ({full:,} in full)"
    towers = method.backbone
    note = "" if towers.reads_text else f"; {towers.config.name} reads no text: class names count for nothing"
    return f"{method.name}: {counted:,} learnable parameters{extra}{note}"


def tell_temperature(model: "TunedModel") -> str:
    """What `--calibrate` came to."""
    from pbprompt.methods.abilities import LeavesOut, can

    temperature = model.info.temperature
    if temperature != 1:
        doubt = "less" if temperature > 1 else "more"
        return f"temperature {temperature:.3f}: probabilities are {doubt} sure than {model.info.method}'s own"
    return (
        f"no validation images to fit a temperature to: {model.info.method}'s probabilities are calibrated "
        "already, by its training images, each left out in turn"
        if can(model.method, LeavesOut)
        else "no validation images to fit a temperature to: the probabilities stay as they are"
    )


def tell_calibration(calibration: "Calibration | None") -> str:
    """What `predict` can answer with this model, and how to get what it cannot."""
    if calibration is None:
        return (
            "no validation images to calibrate on: `predict` can mark no image as unsure and give no sets "
            "for --coverage; add a val/ folder beside train/ and test/, draw fewer --shots, or fit "
            "`conjugate` on two images per class or more"
        )
    missing = calibration.classes - calibration.classes_seen
    note = f"; classes without one: {missing} (marks and sets may be too sure of them)" if missing else ""
    return f"`predict --reject-at` and `--coverage` rest on {calibration.rests_on}{note}"


def print_figures(metrics: dict[str, Any]) -> None:
    """Tuned beside zero-shot and, where they were fitted, plain classifiers of the same training images."""
    from rich.console import Console
    from rich.table import Table

    from pbprompt.model.rivals import RIVALS

    table = Table("", "accuracy", "NLL", "ECE", box=None)
    rivals = ((RIVALS[name], figures) for name, figures in metrics.get("rivals", {}).items())
    plain = [("zero-shot", metrics["zero_shot"])] if "zero_shot" in metrics else []
    for name, values in (*plain, *rivals, ("tuned", metrics)):
        table.add_row(name, f"{values['accuracy']:.2%}", f"{values['nll']:.3f}", f"{values['ece']:.2%}")
    Console().print(table)
    Console().print(f"[dim]{metrics['split']} split, {metrics['images']} images[/]")
    if sets := metrics.get("sets"):
        Console(markup=False, highlight=False, soft_wrap=True).print(
            f"sets for --coverage {sets['asked']:g} hold the true class of {sets['coverage']:.1%} of them, "
            f"with {sets['mean_size']:.1f} classes on average; worst class: {sets['worst_class']}, "
            f"{sets['worst_class_coverage']:.1%} of {sets['worst_class_images']}"
        )


def _views(text: str) -> "Views":
    if text in ("centre", "fresh"):
        return text  # type: ignore[return-value]
    if not re.fullmatch("[1-9][0-9]{0,2}", text):
        raise InputError(f"--views {text[:20]!r}: use centre, fresh or a number of draws up to 999")
    return int(text)
