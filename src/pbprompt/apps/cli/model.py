"""`pbprompt model`: a saved model's life after its first fit. Each change is written whole or not at all."""

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.errors import InputError
from pbprompt.files import held

if TYPE_CHECKING:
    from pbprompt.model.tuned import TunedModel

app = typer.Typer(
    help="Change a saved model: add photographs, keep, rename, merge and remove classes, refit.",
    no_args_is_help=True,
)

MODEL = typer.Argument(..., help="A folder that `pbprompt fit` wrote.")
OUT = typer.Option(None, "--out", "-o", help="Write the changed model here. [in its place]")


@app.command()
def add(
    model: Path = MODEL,
    data: str = typer.Argument(..., help="Class folders or a table: photographs of known or new classes."),
    out: Path | None = OUT,
    classes_file: Path | None = typer.Option(None, help="Maps folder names or labels to class names."),
) -> None:
    """Learn more photographs, of known classes or of new ones, as if the model had been fitted on all.

    [bold]pbprompt model add model/ new-photos/[/bold]
    """
    from pbprompt.apps.audit.audit import open_images
    from pbprompt.vision.features.cache import FeatureBank
    from pbprompt.vision.images.items import some

    def learned(tuned: "TunedModel") -> "tuple[TunedModel, str]":
        dataset, labelled = open_images(data, classes_file=classes_file)
        if not labelled:
            raise InputError(
                f"{data}: no class folders in it: put each class's images in a folder of its own"
            )
        items = dataset.single_label().items
        features = FeatureBank(tuned.backbone).encode(dataset.root, items)
        labels = [dataset.classes[item.label] for item in items]
        taught = tuned.partial_fit(features.images, labels)
        new = [name for name in taught.classes if name not in tuned.classes]
        said = f"; new: {some(new)}" if new else ""
        return taught, f"added {len(items):,} photographs of {some(dict.fromkeys(labels))}{said}"

    _change(model, out, learned)


@app.command()
def keep(
    model: Path = MODEL,
    names: list[str] = typer.Argument(..., help="Classes, known by their names alone until `add`."),
    out: Path | None = OUT,
) -> None:
    """Keep classes that are given by name, as `predict --classes` adds them for one command.

    [bold]pbprompt model keep model/ "red panda" otter[/bold]
    """
    words = f"kept by name: {', '.join(names)}"
    _change(model, out, lambda tuned: (tuned.with_classes(names).with_left_out(), words))


@app.command()
def rename(
    model: Path = MODEL,
    old: str = typer.Argument(..., help="A class of the model."),
    new: str = typer.Argument(..., help="What it is called from now on; its name counts as its prior."),
    out: Path | None = OUT,
) -> None:
    """Rename a class.

    [bold]pbprompt model rename model/ "SKU-4711" "red can"[/bold]
    """
    _regroup(model, out, {old: new}, f"renamed {old} to {new}")


@app.command()
def merge(
    model: Path = MODEL,
    names: list[str] = typer.Argument(..., help="Classes of the model."),
    into: str = typer.Option(..., "--into", help="What they are called together; may be one of them."),
    out: Path | None = OUT,
) -> None:
    """Make one class of several.

    [bold]pbprompt model merge model/ tabby siamese --into cat[/bold]
    """
    words = f"merged {', '.join(names)} into {into}"
    _regroup(model, out, dict.fromkeys(names, into), words)


@app.command()
def remove(
    model: Path = MODEL,
    names: list[str] = typer.Argument(..., help="Classes of the model."),
    out: Path | None = OUT,
) -> None:
    """Forget classes with their photographs.

    [bold]pbprompt model remove model/ other[/bold]
    """
    _regroup(model, out, dict.fromkeys(names), f"removed {', '.join(names)}")


@app.command()
def refit(
    model: Path = MODEL,
    out: Path | None = OUT,
    yes: bool = typer.Option(False, "--yes", "-y", help="Read what the model names, without a question."),
    allow_urls: bool = typer.Option(False, "--allow-urls", help="Fetch the data where it is an address."),
) -> None:
    """Fit again from the same sources and by the same options, as the photographs are now.

    [bold]pbprompt model refit model/[/bold]

    What `add`, `keep`, `rename`, `merge` and `remove` changed is in no source, so it is not in the new model.
    Where the sources lie is asked first: whoever made the model may have named any file of this machine.
    """
    from pbprompt.apps.cli.fit import FitCommand
    from pbprompt.apps.cli.fitting import fit_options
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.towers.loading.hub import EMBEDDED

    with _written(model, out) as place:
        before = TunedModel.load(model, device="auto")
        given = before.info.data.options
        if not given:
            raise InputError(f"{model}: does not say what it was fitted to: use `pbprompt fit`")
        towers = {name: before.info.backbone[name] for name in ("name", "activation")}
        activation = None if towers["name"] in EMBEDDED else towers["activation"]
        work = place.absolute().parent / f".{place.absolute().name}.refit"  # what a kill leaves is replaced
        options = FitCommand.of(
            given, out=work, backbone=towers["name"], activation=activation, allow_urls=allow_urls
        )
        _ask(options.sources, model, yes)
        for change in before.info.data.changes:
            print(f"note: not in the sources, so not in the new model: {change}")
        try:
            shutil.rmtree(work, ignore_errors=True)
            fit_options(options)
            after = TunedModel.load(work, before.backbone)
            after.save(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    print(f"saved: {place}", file=sys.stderr)
    print(_difference(before, after))
    former, now = (one.info.metrics.get("accuracy") for one in (before, after))
    if isinstance(former, float) and isinstance(now, float):
        split = after.info.metrics["split"]
        print(f"on the {split} split: accuracy {former:.2%} before, {now:.2%} now")


def _ask(sources: Sequence[str], model: Path, yes: bool) -> None:
    """Let the person see what is read where it lies outside the model's folder."""
    home = os.path.realpath(model)
    away = [one for one in sources if "\0" in one or not Path(os.path.realpath(one)).is_relative_to(home)]
    if yes or not away:
        return
    named = f"{model} names as its data: {', '.join(map(repr, away))}"
    if not sys.stdin.isatty():
        raise InputError(f"{named}: add --yes to read what it names")
    typer.confirm(f"{named}\nRead it?", abort=True, err=True)


def _regroup(model: Path, out: Path | None, named: dict[str, Any], words: str) -> None:
    for new in filter(None, named.values()):
        if not new.strip():
            raise InputError("a class name is empty: give one")
    _change(model, out, lambda tuned: (tuned.regrouped(named), words))


def _change(model: Path, out: Path | None, change: "Callable[[TunedModel], tuple[TunedModel, str]]") -> None:
    """Load, change, save, and say what became of the figures."""
    from pbprompt.model.tuned import TunedModel

    with _written(model, out) as place:
        before = TunedModel.load(model, device="auto")
        after, words = change(before)
        data = replace(after.info.data, changes=(*before.info.data.changes, words))
        after = replace(after, info=replace(after.info, data=data))
        after.save(place)
    print(words)
    print(_difference(before, after))


@contextmanager
def _written(model: Path, out: Path | None) -> Iterator[Path]:
    """Where the changed model goes, held from before it is read: of two at once the second waits."""
    from pbprompt.model.manifest import claim

    if out is None and not model.is_dir():
        raise InputError(f"{model}: no such folder: give one that `fit` wrote")
    with held(model) if out is None else claim(out):
        yield out or model


def _difference(before: "TunedModel", after: "TunedModel") -> str:
    """What the images that were left out say of both."""
    told = []
    for one in (before.with_left_out() if not before.multi_label else before, after):
        found = one.calibration
        if found is None or found.classes != len(one.classes):
            told.append(f"{len(one.classes)} classes, not judged")
            continue
        loss = -sum(math.log(max(p, 1e-6)) for p in found.true) / len(found)
        told.append(
            f"{len(one.classes)} classes, accuracy {sum(found.right) / len(found):.2%}, NLL {loss:.3f} "
            f"by {found.rests_on}"
        )
    return f"before: {told[0]}\nnow: {told[1]}"
