"""`pbprompt fit`: tune a classifier on a few labelled images."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.apps.cli.options import (
    ACTIVATION,
    ALLOW_URLS,
    DEVICE,
    NAMES,
    ROOT,
    advanced,
    given_options,
    refuse,
    with_options,
)
from pbprompt.apps.cli.output import importing, next_step, note, quote
from pbprompt.config import from_dict
from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.learners.method import Method, MethodConfig
    from pbprompt.vision.towers.backbone import Backbone

AUTO = "auto"
NOT_KEPT = ("out", "device", "dry_run", "pseudo_labels", "allow_urls")  # what to write, and what is allowed


@dataclass(frozen=True, kw_only=True)
class FitCommand:
    """What to fit, to what, and where to save it."""

    data: str = typer.Argument(
        "",
        help="A folder, table, split file, Parquet file, tar, glob or address; or a benchmark with --root. "
        "Left out with --unlabelled and --classes.",
    )
    out: Path = typer.Option(..., "--out", "-o", help="Folder for the model.")
    method: str = typer.Option(
        "conjugate",
        help="conjugate (seconds), pbprompt (the paper's), …; `pbprompt research methods` lists them. auto: "
        "the best of conjugate, class mean, nearest neighbours and linear probe by left-out images.",
    )
    shots: int = typer.Option(0, min=0, help="Training images per class, drawn by --seed; 0: all.")
    hold_out: float | None = typer.Option(
        None,
        min=0,
        max=0.9,
        help="Share of each class's images to keep aside as a test; 0: learn from all of them, whatever "
        "their split. Without it none, but for --shots and methods that train in steps.",
    )
    seed: int = advanced(1, help="Seed of the draw, the start values and the training.")
    preset: str = advanced("default", help="A preset of the method, such as `paper`.")
    variant: str = advanced("", help="A variant of the method, such as `b-prompt`.")
    overrides: list[str] = advanced([], "--set", help="A setting as key=value; may be repeated.")
    backbone: list[str] = typer.Option(
        ["lite"],
        help="lite, lite-vit, an OpenAI name, a file, folder or hub id; repeated: conjugate sees by each. "
        "With auto among them: by the cheapest choice of them that is not worse, by left-out images.",
    )
    activation: str | None = ACTIVATION
    device: str = DEVICE
    precision: str = advanced(
        "float32",
        help="Of the frozen towers: float32, or on a GPU float16 or bfloat16, half the memory and quicker; "
        "bfloat16 also on a CPU that has it.",
    )
    framing: str = advanced(
        "",
        help="What is seen of an image that is no square: crop (its centre), pad (all, with a border) or "
        "squash (all, out of shape). [as the backbone was trained]",
    )
    root: Path | None = ROOT
    classes_file: Path | None = NAMES
    hierarchy: Path | None = typer.Option(
        None,
        help="What each class belongs to, and each group: two columns, or lines `class: group`. For "
        "`predict --back-off`. Without it: a table's column `parent`.",
    )
    nested: bool = advanced(
        False,
        "--nested",
        help="Of folders within folders the innermost are the classes; those above, groups.",
    )
    descriptions: Path | None = typer.Option(
        None,
        help="A YAML file, `class: sentence` or a list of them: what is said of classes to the model. "
        "Without it: a table's column `description`.",
    )
    draw_file: Path | None = advanced(None, "--draw", help="A draw file to train on instead of drawing.")
    views: str = advanced("centre", help="Training crops: centre, a number of random draws, or fresh.")
    max_steps: int | None = advanced(None, min=1, help="Stop after so many steps.")
    verbose: bool = typer.Option(False, "--verbose", help="Also likelihood and calibration error (NLL, ECE).")
    strict: bool = advanced(
        False, "--strict", help="Refuse data with images that cannot be read, which are left out otherwise."
    )
    corrections: Path | None = typer.Option(
        None, help="A table that `look` or its page wrote: images to relabel or drop."
    )
    group: str = typer.Option(
        "",
        help="What makes photographs a series, which counts as one: a column of the table, folder (one below "
        "the class), exif (camera and minute), near-duplicates, or none. [certain twins]",
    )
    calibrate: bool = advanced(
        False,
        "--calibrate",
        help="Scale the probabilities by a temperature fitted to validation images; the default method does "
        "so by itself where a hundred are at hand.",
    )
    unlabelled: list[str] = typer.Option(
        [], help="Images without labels to learn from too, from wherever `predict` reads; may be repeated."
    )
    pseudo_labels: Path | None = advanced(
        None, help="Write what each of --unlabelled is taken for to this CSV file."
    )
    classes: str = typer.Option("", "--classes", "-c", help="Without labelled images: names, by commas.")
    allow_urls: bool = ALLOW_URLS
    dry_run: bool = advanced(False, help="Say what would be trained, try one step, write nothing.")

    @cached_property
    def kind(self) -> "type[Method]":
        from pbprompt.registry import find_method

        if self.method == AUTO:  # until the images are there, and where it is the only one that can
            refuse(self, "preset variant overrides", "--method auto takes each method as it is")
        return find_method("conjugate" if self.method == AUTO else self.method)

    @cached_property
    def config(self) -> "MethodConfig":
        from pbprompt.learners.method import make_config

        return make_config(self.kind, self.preset, self.variant, self.overrides)

    @cached_property
    def tower(self) -> "Backbone":
        from pbprompt.vision.images.crops import framing_of
        from pbprompt.vision.towers.loading.load import load_backbone
        from pbprompt.vision.towers.rounding import precision_of

        dtype = precision_of(self.precision, self.device)
        names = [name for name in self.backbone if name != AUTO]
        found = load_backbone(names, activation=self.activation, device=self.device, dtype=dtype)
        framing = framing_of(self.framing)
        return load_backbone([one.framed(framing) for one in found.towers]) if framing else found

    @property
    def kept(self) -> dict[str, object]:
        """What another fit of the same sources needs, as JSON; where things are, from anywhere."""
        changed = {name: getattr(self, name) for name in given_options(self) if name not in NOT_KEPT}
        if (data := Path(self.data).expanduser()).exists():
            changed["data"] = data
        return {
            name: str(value.absolute()) if isinstance(value, Path) else value
            for name, value in changed.items()
        }

    @property
    def sources(self) -> list[str]:
        """What it reads, by its names."""
        paths = (getattr(self, name) for name in PATHS - {"out", "pseudo_labels"})
        return [*filter(None, (self.data, *self.unlabelled)), *sorted(str(path) for path in paths if path)]

    @classmethod
    def of(cls, kept: Mapping[str, object], **given: object) -> "FitCommand":
        """From what a model has kept, which anybody may have written: names of data, and settings, alone."""
        taken: dict[str, Any] = {name: value for name, value in kept.items() if name not in NOT_KEPT}
        if isinstance(one := taken.get("backbone"), str):  # as models said when they saw by one
            taken["backbone"] = [one]
        taken |= {name: Path(taken[name]) for name in PATHS & set(taken) if isinstance(taken[name], str)}
        declared: dict[str, Any] = {field.name: field.default for field in fields(cls)}
        usual = {name: option.default for name, option in declared.items()}  # of what must be given, nothing
        options = from_dict(cls, {**usual, **taken, **given}, "option")
        for name, option in declared.items():  # as the command line checks them; NaN is within no bounds
            value = getattr(options, name)
            least, most = getattr(option, "min", None), getattr(option, "max", None)
            if value is not None and not (
                (least is None or least <= value) and (most is None or value <= most)
            ):
                raise InputError(f"option {name!r} is {value}: it is out of bounds")
        return options


PATHS = {field.name for field in fields(FitCommand) if field.type in (Path, Path | None)}


@with_options(FitCommand)
def fit(options: FitCommand) -> None:
    """Fit a classifier to a few labelled images and save it, with its figures on images that were left out.

    The default, `conjugate`, takes what a class's name says as a first guess and lets its photographs correct
    it: no training, seconds. [bold]--method pbprompt[/bold] tunes the paper's prompts, in minutes.
    Zero-shot and plain classifiers of the same images stand beside it: what tuning bought is seen at once.

    [bold]pbprompt fit photos/ --out model/[/bold]

    [bold]pbprompt fit photos/ --backbone lite --backbone ViT-B/16 --out model/[/bold] sees by both; with
    [bold]--backbone auto[/bold] too by either or both, whichever left-out images say is worth its time.

    [bold]pbprompt fit photos/ --unlabelled more/ --out model/[/bold] learns from images without labels too,
    if left-out labelled ones say that it helps; with names alone:
    [bold]pbprompt fit --unlabelled more/ --classes cat,dog,car --out model/[/bold]

    [bold]pbprompt fit labels.csv --out model/[/bold] is multi-label where a column is called `labels`, with
    cells such as beach|dog. [bold]pbprompt fit 'shards/*.tar' --out model/[/bold] reads in one pass, in
    memory that does not grow.

    [bold]pbprompt fit caltech101 --root DATA --method pbprompt --preset paper --out model/[/bold]

    Ctrl-C keeps a checkpoint: the same command continues from there. Under torchrun several processes share
    one run: [bold]torchrun --nproc-per-node 4 -m pbprompt fit …[/bold]
    """
    with importing():
        from pbprompt.apps.cli.fitting import run_fit

    if run_fit(options):
        note(f"saved: {options.out}")
        out = quote(options.out)
        if options.data:
            where = f" --root {quote(options.root)}" if options.root else ""
            next_step(f"pbprompt evaluate {out} {quote(options.data)}{where} --html report.html")
        else:
            next_step(f"pbprompt predict IMAGES --model {out}")
