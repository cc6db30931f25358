"""`pbprompt export`: a model as one ONNX file or its merged towers; its answers for a labelling tool."""

from pathlib import Path
from typing import Literal

import typer

from pbprompt.apps.cli.options import BACKBONE, check_suffix, refuse_first
from pbprompt.apps.cli.output import next_step, quote
from pbprompt.errors import InputError


def export(
    model: Path = typer.Argument(
        ..., metavar="DIR", help="A folder that `pbprompt fit` wrote; with --labels, a file of answers."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="model.onnx, or towers.safetensors."),
    labels: Literal["label-studio", "fiftyone", "coco", "csv"] | None = typer.Option(
        None, help="Write answers of `pbprompt predict` as this tool imports them."
    ),
    root: Path | None = typer.Option(
        None, help="With --labels: the folder that the tool's paths are relative to; default: that of --out."
    ),
    precision: Literal["fp32", "fp16"] = typer.Option(
        "fp32", help="Of the image tower; fp16: half the size."
    ),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class and folded in."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts; as in `predict`."),
    classes: str = typer.Option("", "--classes", "-c", help="Names to add to the model's, with commas."),
    backbone: list[str] = BACKBONE,
) -> None:
    """Write a tuned model as one ONNX file that runs without torch and without this package.

    [bold]pbprompt export model/ --out model.onnx[/bold]

    [bold]pbprompt export model/ --out model.onnx --precision fp16 --classes "zebra,okapi"[/bold]

    Input: `image`, uint8 of batch × R × R × 3, resized and cropped. Outputs: `probabilities`, `entropy` and
    `epistemic`, as `predict` gives them. Class names and preprocessing are in the file's metadata.

    [bold]pbprompt export model/ --out towers.safetensors[/bold] writes the towers of a model that has tuned
    them by low-rank updates (clip-lora), merged into the weights, in OpenAI's layout.

    [bold]pbprompt predict photos/ --model model/ --out answers.csv[/bold] and then
    [bold]pbprompt export answers.csv --labels label-studio --root photos/ --out tasks.json[/bold] takes the
    answers to a labelling tool, where people accept or correct them; `fit` reads what the tool exports.
    """
    if labels:
        as_they_are = "--labels writes answers as they are: leave it out"
        refuse_first((classes, f"--classes: {as_they_are}"), (backbone, f"--backbone: {as_they_are}"))
        _export_labels(model, labels, out, root)
        return
    if root:
        raise InputError("--root: it is for --labels: leave it out")
    check_suffix("--out", out, ".onnx", ".safetensors")
    from pbprompt.apps.cli.predict import class_names
    from pbprompt.apps.export import export_onnx, export_towers
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.images.names import distinct

    tuned = TunedModel.load(model, backbone, samples=samples, seed=seed)
    if out.suffix.lower() == ".safetensors":
        file, own = export_towers(tuned, out), tuned.backbone.config.activation
        print(f"saved: {file} ({file.stat().st_size / 1e6:.1f} MB): use it as --backbone {file}")
        print(f"the file does not tell its activation: add --activation {own}")
        return
    if names := class_names(classes, None):
        tuned = tuned.for_classes(distinct([*tuned.classes, *names]))
    written = export_onnx(tuned, out, precision=precision)
    for file in written.files:
        print(f"saved: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    within = f"onnxruntime is within {written.difference:.1g} of torch on random images"
    print(f"{len(tuned.classes)} classes, {precision}; {within}")
    if tuned.calibration and not written.calibrated:
        print("without thresholds for unsure images: they were found for other classes, samples or seed")


def _export_labels(answers: Path, tool: str, out: Path, root: Path | None) -> None:
    from pbprompt.apps.batch.formats import read
    from pbprompt.apps.batch.label_files import label_file, labelling_config
    from pbprompt.files import write_text
    from pbprompt.vision.images.label_files import images_of

    if out.exists():  # it may hold what people have labelled
        raise InputError(f"{out}: exists already: give another name, or remove it")
    check_suffix("--out", out, ".csv" if tool == "csv" else ".json")
    written = label_file(read(answers), tool, root or images_of(out, fiftyone=tool == "fiftyone"))
    write_text(out, written.text)
    print(f"saved: {out}: {written.images:,} images, {len(written.classes)} classes")
    if tool == "label-studio":
        print("import it into a project with this labelling configuration:")
        print(labelling_config(written.classes, written.several))
    where = f" --root {quote(root)}" if root else ""
    next_step(f"pbprompt fit EXPORTED{where} --out model2/", "what the tool gives back, corrected")
