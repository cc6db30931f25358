"""`pbprompt export`: a tuned model as one ONNX file."""

from enum import StrEnum
from pathlib import Path

import typer


class Precision(StrEnum):
    """Of the image tower."""

    fp32 = "fp32"
    fp16 = "fp16"


def export(
    model: Path = typer.Argument(..., metavar="DIR", help="A folder that `pbprompt fit` wrote."),
    out: Path = typer.Option(..., "--out", "-o", help="The file to write, such as model.onnx."),
    precision: Precision = typer.Option(Precision.fp32, help="Of the image tower; fp16: half the size."),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class and folded in."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts; as in `predict`."),
    classes: str = typer.Option("", "--classes", "-c", help="Names to add to the model's, with commas."),
    backbone: str | None = typer.Option(None, help="Where the backbone is now, if not where it was."),
) -> None:
    """Write a tuned model as one ONNX file that runs without torch and without this package.

    [bold]pbprompt export model/ --out model.onnx[/bold]

    [bold]pbprompt export model/ --out model.onnx --precision fp16 --classes "zebra,okapi"[/bold]

    Input: `image`, uint8 of batch × R × R × 3, resized and cropped. Outputs: `probabilities`, `entropy` and
    `epistemic`, as `predict` gives them. Class names and preprocessing are in the file's metadata.
    """
    from pbprompt.cli.predict import class_names, distinct
    from pbprompt.export import export_onnx
    from pbprompt.model.calibration import read_calibration
    from pbprompt.model.folder import load_model

    method, info = load_model(model, backbone)
    names = class_names(classes, None)
    if names:
        method.prepare(distinct([*info.classes, *names]), info.template)
    calibration = read_calibration(model)
    written = export_onnx(
        method, out, precision=precision.value, samples=samples, seed=seed, calibration=calibration
    )
    for file in written.files:
        typer.echo(f"saved: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    typer.echo(
        f"{len(method.classes)} classes, {precision.value}; onnxruntime is within "
        f"{written.difference:.1g} of torch on random images"
    )
    if calibration and not written.calibrated:
        typer.echo("without thresholds for unsure images: they were found for other classes, samples or seed")
