"""`pbprompt predict`: name what is in images."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import typer

from pbprompt.apps.cli.options import (
    ACTIVATION,
    ALLOW_URLS,
    COSTS,
    DEVICE,
    RAY_ADDRESS,
    SEED,
    advanced,
    with_options,
)
from pbprompt.errors import InputError
from pbprompt.files import read_text
from pbprompt.vision.images.items import DEFAULT_TEMPLATE

SHARES = "reject_at back_off coverage none_at"
REJECT_AT = 0.9  # where --reject-at is not given and can be promised


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
    template: str | None = advanced(
        None, help=f"Sentence around a name; {{}} is the name. [{DEFAULT_TEMPLATE}]"
    )
    backbone: list[str] = advanced(
        [], help="lite (default), lite-vit, OpenAI name, file, folder, hub id; of several repeated."
    )
    activation: str | None = ACTIVATION
    device: str = DEVICE
    samples: int = advanced(20, min=1, help="Prompts sampled for each class of a tuned model.")
    seed: int = SEED
    top_k: int = typer.Option(3, min=1, help="How many classes to show for each image.")
    reject_at: float | None = typer.Option(
        None, help=f"Mark as unsure so that the others are this accurate, with 90 % certainty. [{REJECT_AT}]"
    )
    back_off: float | None = advanced(
        None,
        help="Answer by a class or, where none is sure enough, a group of classes, so that answers are this "
        "accurate: 0.95. Of a model fitted with --hierarchy.",
    )
    coverage: float | None = typer.Option(
        None, help="Give sets of classes that hold the true one this often, such as 0.9."
    )
    per_class: bool = advanced(
        False, "--per-class", help="Hold --coverage for the images of every class, not on average."
    )
    class_mix: str = advanced(
        "as-trained",
        help="How often classes come: as-trained, balanced, estimate (from these images), or a file of lines "
        "`class: number`. With --model.",
    )
    costs: Path | None = COSTS
    none_at: float | None = typer.Option(
        None,
        help="Mark what looks like none of the classes, wrongly so for this share of their images: 0.05.",
    )
    together: bool = advanced(
        False,
        "--together",
        help="Let the images inform each other: all are read before the first is answered. With --model.",
    )
    independent: bool = advanced(
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
    fast_resize: bool = advanced(
        False, "--fast-resize", help="Resize images approximately, in less time (docs/batch.md)."
    )
    precision: Literal["float32", "bfloat16"] = advanced(
        "float32", help="Of the image tower: float32, or bfloat16, which is approximate and faster on a CPU."
    )
    features: bool = advanced(False, "--features", help="With --out: each image's features too.")
    allow_urls: bool = ALLOW_URLS
    executor: Literal["local", "ray"] = advanced(
        "local", help="What answers, with --out: local, or ray on many machines."
    )
    ray_address: str | None = RAY_ADDRESS

    @cached_property
    def names(self) -> list[str]:
        return class_names(self.classes, self.classes_file)

    def __post_init__(self) -> None:
        if self.template is not None and "{}" not in self.template:
            raise InputError(f"--template {self.template!r} has no {{}}: write where the class name goes")
        for name in SHARES.split():
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} {share:g}: give a share between 0 and 1, such as 0.9")


@with_options(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Classify images by class names alone (zero-shot), or with a tuned model and its uncertainty.

    [bold]pbprompt predict photo.jpg --classes cat,dog,car[/bold]

    [bold]pbprompt predict holiday/ --model model/ --reject-at 0.95 --coverage 0.9[/bold]

    With a model, `doubt` is the number of equally likely classes between which it would be as undecided:
    1.0 is sure. An image is `unsure` where its top probability is below a threshold: images above it, if
    they are like the validation images, are right as often as --reject-at asks, with 90 % certainty. Where
    so few images can promise no such thing, all are unsure if --reject-at was given. --coverage lists the
    classes an image may be of: the true one is among them at least that often. --none-at 0.05 marks what
    looks like none of the classes (five in a hundred images of the classes are marked too).

    --class-mix is for images of which the classes come otherwise than in training, --together lets images
    inform each other (docs/unlabelled.md). A multi-label model says which of its labels each image has.

    An image that cannot be read is reported and skipped; exit code 1. With --out the images may be millions:
    they are read as a stream, and where the command is ended, the same command goes on.

    [bold]pbprompt predict photos/ shards/*.tar --model model/ --out answers.parquet[/bold]
    """
    from pbprompt.apps.cli.predicting import answer

    answer(options)


def class_names(classes: str, classes_file: Path | None) -> list[str]:
    """The names given on the command line or in a file."""
    if classes and classes_file:
        raise InputError("--classes and --classes-file both given: choose one")
    given = classes.split(",") if classes_file is None else read_text(classes_file).splitlines()
    return [" ".join(name.split()) for name in given if name.strip()]
