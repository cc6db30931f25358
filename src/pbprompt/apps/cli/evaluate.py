"""`pbprompt evaluate`: the figures of a saved model on a split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from pbprompt.apps.cli.options import (
    BACKBONE,
    CLASS_MIX,
    DATA,
    DEVICE,
    MODEL,
    NAMES,
    ROOT,
    SAMPLES,
    SEED,
    with_options,
)
from pbprompt.apps.cli.output import importing


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Which model, by which images, and what to say and to write of it."""

    model: Path = MODEL
    data: str = DATA
    split: Literal["train", "val", "test", "all"] | None = typer.Option(
        None, help="train, val, test or all; else test or, where the data has no split, all its images."
    )
    samples: int = SAMPLES
    seed: int = SEED
    backbone: list[str] = BACKBONE
    device: str = DEVICE
    root: Path | None = ROOT
    classes_file: Path | None = NAMES
    html: Path | None = typer.Option(
        None, help="Write the model report, one page with pictures of what it confuses, to this file."
    )
    figures: Path | None = typer.Option(
        None, help="Write the confusion matrix and more, as CSV, SVG and PNG, into this folder."
    )
    against: bool = typer.Option(
        False,
        "--against",
        help="Beside it what others make of the same training images: class mean, nearest neighbours, linear "
        "probe, and scikit-learn's LR, LDA, kNN and SVM by cross-validation.",
    )
    against_model: Path | None = typer.Option(
        None, help="Beside it another model, such as an earlier one, on the same images."
    )
    together: bool = typer.Option(
        False, "--together", help="Also its figures where the images inform each other."
    )
    class_mix: str = typer.Option("as-trained", help=f"{CLASS_MIX} Give that of these images.")
    as_json: bool = typer.Option(False, "--json", help="Print everything as one JSON object.")


@with_options(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> None:
    """See how good a model is and where it fails: figures, weakest classes, what it confuses.

    Accuracy, NLL and calibration error stand beside zero-shot's, of the same backbone. A class's recall is
    the share of its images that are named so; its precision, the share of images named so that are of it.

    [bold]pbprompt evaluate model/ photos/ --html report.html[/bold]

    [bold]pbprompt evaluate model/ photos/ --against[/bold] puts a table of other classifiers beside it.

    On the test split also how often prediction sets hold the true class, and of which class they do worst.

    A folder without a split is judged whole. Where the model was fitted to that very folder, each image is
    judged by a model that did not see it.

    The data's own class names are used: names the model was not tuned on need no training.

    Of a multi-label model: mAP, and precision, recall and F1 of all labels and of each.
    """
    with importing():
        from pbprompt.apps.cli.evaluating import run_evaluate

    run_evaluate(options)
