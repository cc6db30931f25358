"""`pbprompt export`: a tuned model as one ONNX file, or its merged towers as a checkpoint."""

from enum import StrEnum
from pathlib import Path

import typer

from pbprompt.errors import InputError


class Precision(StrEnum):
    """Of the image tower."""

    fp32 = "fp32"
    fp16 = "fp16"


def export(
    model: Path = typer.Argument(..., metavar="DIR", help="A folder that `pbprompt fit` wrote."),
    out: Path = typer.Option(..., "--out", "-o", help="model.onnx, or towers.safetensors."),
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

    [bold]pbprompt export model/ --out towers.safetensors[/bold] writes the towers of a model that has tuned
    them by low-rank updates (clip-lora), merged into the weights, in OpenAI's layout.
    """
    from pbprompt.apps.cli.predict import class_names
    from pbprompt.apps.export import export_onnx, export_towers
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.images.names import distinct

    if out.is_dir():
        raise InputError(f"--out {out}: is a folder: give a file name such as model.onnx")
    tuned = TunedModel.load(model, backbone, samples=samples, seed=seed)
    if out.suffix == ".safetensors":
        file, own = export_towers(tuned, out), tuned.backbone.config.activation
        typer.echo(f"saved: {file} ({file.stat().st_size / 1e6:.1f} MB): use it as --backbone {file}")
        typer.echo(f"the file does not tell its activation: add --activation {own}")
        return
    if names := class_names(classes, None):
        tuned = tuned.for_classes(distinct([*tuned.classes, *names]))
    written = export_onnx(tuned, out, precision=precision.value)
    for file in written.files:
        typer.echo(f"saved: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    typer.echo(
        f"{len(tuned.classes)} classes, {precision.value}; onnxruntime is within "
        f"{written.difference:.1g} of torch on random images"
    )
    if tuned.calibration and not written.calibrated:
        typer.echo("without thresholds for unsure images: they were found for other classes, samples or seed")
