"""`pbprompt predict`: name what is in images."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pbprompt.clip.backbone import Backbone

BATCH = 32


def predict(
    images: list[str] = typer.Argument(..., help="Image files, folders or globs."),
    classes: str = typer.Option("", "--classes", "-c", help="Class names, separated by commas."),
    classes_file: Path | None = typer.Option(
        None, "--classes-file", help="A file with one class name a line."
    ),
    template: str = typer.Option("a photo of a {}.", help="The sentence around a name; {} is the name."),
    backbone: str = typer.Option(
        "lite", help="lite, an OpenAI name (ViT-B/16, RN50, …), a file, folder or hub id."
    ),
    activation: str | None = typer.Option(None, help="quick_gelu or gelu, for weights that do not tell."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    top_k: int = typer.Option(3, min=1, help="How many classes to show for each image."),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object a line: image, label, score, scores."
    ),
) -> None:
    """Classify images by class names alone (zero-shot).

    [bold]pbprompt predict photo.jpg --classes cat,dog,car[/bold]

    [bold]pbprompt predict holiday/ --classes-file names.txt --top-k 5[/bold]

    An image that cannot be read is reported and skipped; the exit code is then 1.
    """
    from pbprompt.clip.weights import load_backbone
    from pbprompt.data.images import list_images

    names = class_names(classes, classes_file)
    if "{}" not in template:
        raise InputError(f"--template {template!r} has no {{}}: write where the class name goes")
    paths = [path for given in images for path in list_images(given)]
    model = load_backbone(backbone, activation=activation, device=device)
    weights = class_features(model, names, template)
    rows: list[tuple[Path, list[float]]] = []
    failures = 0
    for path, scores in _scored(model, weights, paths, quiet=as_json):
        if isinstance(scores, InputError):
            failures += 1
            print(f"pbprompt: {scores}", file=sys.stderr)
        elif as_json:
            best = max(range(len(names)), key=scores.__getitem__)
            every = {name: round(score, 6) for name, score in zip(names, scores, strict=True)}
            record = {"image": str(path), "label": names[best], "score": every[names[best]], "scores": every}
            print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            rows.append((path, scores))
    if rows:
        _print_table(rows, names, top_k)
    if failures:
        print(f"pbprompt: {failures} of {len(paths)} images could not be read", file=sys.stderr)
        raise typer.Exit(1)


def class_names(classes: str, classes_file: Path | None) -> list[str]:
    """The wanted names, each once."""
    if classes and classes_file:
        raise InputError("--classes and --classes-file both given: choose one")
    if classes_file:
        try:
            given = classes_file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--classes-file {classes_file}: {error}: give a UTF-8 text file") from error
    else:
        given = classes.split(",")
    names = [" ".join(name.split()) for name in given if name.strip()]
    if not names:
        raise InputError("no class names: give --classes cat,dog,car or --classes-file FILE")
    seen: dict[str, str] = {}
    for name in names:
        key = name.replace("_", " ").casefold()
        if key in seen:
            raise InputError(f"class names {seen[key]!r} and {name!r} are the same: name each class once")
        seen[key] = name
    return names


def class_features(model: "Backbone", names: list[str], template: str) -> "Tensor":
    """One normalised text feature a class."""
    import torch.nn.functional as F

    from pbprompt.clip.engine import encode_texts

    sentences = [template.replace("{}", name.replace("_", " ")) for name in names]
    return F.normalize(encode_texts(model, sentences).float(), dim=-1)


def _scored(
    model: "Backbone", weights: "Tensor", paths: list[Path], quiet: bool
) -> Iterator[tuple[Path, "list[float] | InputError"]]:
    """Class probabilities for each image, in order; an unreadable one gives its error."""
    import torch
    import torch.nn.functional as F
    from rich.console import Console
    from rich.progress import track

    from pbprompt.data.images import open_image

    batches = [paths[at : at + BATCH] for at in range(0, len(paths), BATCH)]
    hidden = quiet or len(batches) == 1
    for batch in track(batches, "images", console=Console(stderr=True), disable=hidden, transient=True):
        errors: dict[Path, InputError] = {}
        tensors = []
        for path in batch:
            try:
                tensors.append(model.preprocess(open_image(path)))
            except InputError as error:
                errors[path] = error
        scores: Iterator[list[float]] = iter(())
        if tensors:
            with torch.inference_mode():
                features = model.image(torch.stack(tensors).to(model.device)).global_.float()
                logits = model.logit_scale * F.normalize(features, dim=-1) @ weights.t()
                scores = iter(logits.softmax(dim=-1).tolist())
        for path in batch:
            yield path, errors[path] if path in errors else next(scores)


def _print_table(rows: list[tuple[Path, list[float]]], names: list[str], top_k: int) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    shown = min(top_k, len(names))
    table = Table(Column("image", overflow="fold"), *(f"{rank}." for rank in range(1, shown + 1)), box=None)
    for path, scores in rows:
        best = sorted(range(len(names)), key=scores.__getitem__, reverse=True)[:shown]
        table.add_row(str(path), *(f"{names[c]} {scores[c]:.1%}" for c in best))
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no screen to fit
    Console(width=wide).print(table)
