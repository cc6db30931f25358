"""`pbprompt predict`: name what is in images."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.methods.predictor import Predictor

BATCH = 32
TEMPLATE = "a photo of a {}."


def predict(
    images: list[str] = typer.Argument(..., help="Image files, folders or globs."),
    classes: str = typer.Option("", "--classes", "-c", help="Class names, separated by commas."),
    classes_file: Path | None = typer.Option(None, help="A file, one class name a line."),
    model: Path | None = typer.Option(None, help="A folder that `pbprompt fit` wrote; --classes adds to it."),
    template: str | None = typer.Option(None, help=f"Sentence around a name; {{}} is the name. [{TEMPLATE}]"),
    backbone: str | None = typer.Option(None, help="lite (default), an OpenAI name, a file, folder, hub id."),
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class of a tuned model."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts."),
    top_k: int = typer.Option(3, min=1, help="How many classes to show for each image."),
    as_json: bool = typer.Option(False, "--json", help="A JSON object a line: image, label, score, scores."),
) -> None:
    """Classify images by class names alone (zero-shot), or with a tuned model and its uncertainty.

    [bold]pbprompt predict photo.jpg --classes cat,dog,car[/bold]

    [bold]pbprompt predict holiday/ --model model/ --top-k 5[/bold]

    With a model, `entropy` is the whole doubt about an image in nats and `epistemic` the part of it that the
    sampled prompts disagree on. An image that cannot be read is reported and skipped; exit code 1.
    """
    from pbprompt.clip.weights import load_backbone
    from pbprompt.data.images import list_images
    from pbprompt.evaluate.scoring import zero_shot
    from pbprompt.methods.predictor import predictive
    from pbprompt.train.model_folder import load_model

    if template is not None and "{}" not in template:
        raise InputError(f"--template {template!r} has no {{}}: write where the class name goes")
    names = class_names(classes, classes_file)
    paths = [path for given in images for path in list_images(given)]
    if model is None:
        if not names:
            raise InputError("no class names: give --classes cat,dog,car, --classes-file FILE or --model DIR")
        tower = load_backbone(backbone or "lite", activation=activation, device=device)
        predictor = zero_shot(tower, distinct(names), template or TEMPLATE)
    else:
        method, info = load_model(model, backbone, device)
        method.prepare(distinct([*info.classes, *names]), template or info.template)
        predictor = predictive(method, samples, seed)
    rows, failures = [], 0
    for path, result in _predictions(predictor, paths, quiet=as_json):
        if isinstance(result, InputError):
            failures += 1
            print(f"pbprompt: {result}", file=sys.stderr)
        elif as_json:
            extra = {key: result[key] for key in ("entropy", "epistemic", "spread") if model}
            print(json.dumps(_record(path, result) | extra, ensure_ascii=False), flush=True)
        else:
            rows.append((path, result))
    if rows:
        _print_table(rows, top_k, uncertain=model is not None)
    if failures:
        print(f"pbprompt: {failures} of {len(paths)} images could not be read", file=sys.stderr)
        raise typer.Exit(1)


def class_names(classes: str, classes_file: Path | None) -> list[str]:
    """The names given on the command line or in a file."""
    if classes and classes_file:
        raise InputError("--classes and --classes-file both given: choose one")
    if classes_file is None:
        given = classes.split(",")
    else:
        try:
            given = classes_file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--classes-file {classes_file}: {error}: give a UTF-8 text file") from error
    return [" ".join(name.split()) for name in given if name.strip()]


def distinct(names: list[str]) -> list[str]:
    """The names, refused where two are one class."""
    seen: dict[str, str] = {}
    for name in names:
        key = name.replace("_", " ").casefold()
        if key in seen:
            raise InputError(f"class names {seen[key]!r} and {name!r} are the same: name each class once")
        seen[key] = name
    return names


Result = dict[str, Any]


def _predictions(
    predictor: "Predictor", paths: list[Path], quiet: bool
) -> Iterator[tuple[Path, Result | InputError]]:
    """What the predictor says of each image, in order; an unreadable one gives its error."""
    import torch
    from rich.console import Console
    from rich.progress import track

    from pbprompt.data.images import open_image

    backbone, names = predictor.method.backbone, predictor.method.classes
    batches = [paths[at : at + BATCH] for at in range(0, len(paths), BATCH)]
    hidden = quiet or len(batches) == 1
    for batch in track(batches, "images", console=Console(stderr=True), disable=hidden, transient=True):
        results: dict[Path, Result | InputError] = {}
        tensors = {}
        for path in batch:
            try:
                tensors[path] = backbone.preprocess(open_image(path))
            except InputError as error:
                results[path] = error
        if tensors:
            with torch.inference_mode():
                said = predictor(backbone.image(torch.stack(list(tensors.values())).to(backbone.device)))
            columns = (said.probabilities, said.entropy, said.mutual_information, said.spread)
            for path, *values in zip(tensors, *(column.tolist() for column in columns), strict=True):
                scores = dict(zip(names, values[0], strict=True))
                rounded = (round(value, 6) for value in values[1:])
                results[path] = {"scores": scores} | dict(
                    zip(("entropy", "epistemic", "spread"), rounded, strict=True)
                )
        for path in batch:
            yield path, results[path]


def _record(path: Path, result: Result) -> dict[str, Any]:
    scores = {name: round(score, 6) for name, score in result["scores"].items()}
    label = max(result["scores"], key=result["scores"].__getitem__)
    return {"image": str(path), "label": label, "score": scores[label], "scores": scores}


def _print_table(rows: list[tuple[Path, Result]], top_k: int, uncertain: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    shown = min(top_k, len(rows[0][1]["scores"]))
    doubt = ("entropy", "epistemic") if uncertain else ()
    table = Table(Column("image", overflow="fold"), *(f"{n}." for n in range(1, shown + 1)), *doubt, box=None)
    for path, result in rows:
        best = sorted(result["scores"].items(), key=lambda pair: -pair[1])[:shown]
        cells = [f"{name} {score:.1%}" for name, score in best]
        table.add_row(str(path), *cells, *(f"{result[key]:.3f}" for key in doubt))
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no screen to fit
    Console(width=wide).print(table)
