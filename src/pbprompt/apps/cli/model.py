"""`pbprompt model`: a saved model's life after its first fit. Each change is written whole or not at all."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.errors import InputError

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
def refit(model: Path = MODEL, out: Path | None = OUT) -> None:
    """Fit again from the same sources and by the same options, as the photographs are now.

    [bold]pbprompt model refit model/[/bold]

    What `add`, `keep`, `rename`, `merge` and `remove` changed is in no source, so it is not in the new model.
    """
    from pbprompt.apps.cli.fit import FitOptions
    from pbprompt.apps.cli.fitting import fit_options
    from pbprompt.model.tuned import TunedModel

    before = TunedModel.load(model, device="auto")
    given = before.info.data.get("options")
    if not isinstance(given, dict):
        raise InputError(f"{model}: does not say what it was fitted to: use `pbprompt fit`")
    for change in before.info.data.get("changes", ()):
        print(f"note: not in the sources, so not in the new model: {change}")
    with TemporaryDirectory(dir=(out or model).absolute().parent, prefix=".refit-") as place:
        fit_options(FitOptions.of({**given, "out": Path(place) / "model"}))
        after = TunedModel.load(Path(place) / "model", before.backbone)
        _save(after, model, out)
    print(f"saved: {out or model}", file=sys.stderr)
    print(_difference(before, after))
    former, now = (one.info.metrics.get("accuracy") for one in (before, after))
    if former is not None and now is not None:
        split = after.info.metrics["split"]
        print(f"on the {split} split: accuracy {former:.2%} before, {now:.2%} now")


def _regroup(model: Path, out: Path | None, named: dict[str, Any], words: str) -> None:
    for new in filter(None, named.values()):
        if not new.strip():
            raise InputError("a class name is empty: give one")
    _change(model, out, lambda tuned: (tuned.regrouped(named), words))


def _change(model: Path, out: Path | None, change: "Callable[[TunedModel], tuple[TunedModel, str]]") -> None:
    """Load, change, save, and say what became of the figures."""
    from pbprompt.model.tuned import TunedModel

    before = TunedModel.load(model, device="auto")
    after, words = change(before)
    data = {**after.info.data, "changes": [*after.info.data.get("changes", ()), words]}
    after = replace(after, info=replace(after.info, data=data))
    _save(after, model, out)
    print(words)
    print(_difference(before, after))


def _save(changed: "TunedModel", model: Path, out: Path | None) -> None:
    from pbprompt.model.manifest import check_free

    if out is not None:
        check_free(out)
    changed.save(out or model)


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
