"""`pbprompt model`: a saved model's life after its first fit. Each change is written whole or not at all."""

import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.apps.cli.options import MODEL, NAMES
from pbprompt.apps.cli.output import next_step, note, quote
from pbprompt.errors import InputError
from pbprompt.files import as_text, held

if TYPE_CHECKING:
    from pbprompt.model.tuned import TunedModel

    Changed = tuple[TunedModel, str, dict[str, Any]]  # what was done in words, and what is known of it since

app = typer.Typer(
    help="Change a saved model: add photographs and classes, rename, merge and remove classes, refit.",
    no_args_is_help=True,
)

CLASSES = typer.Argument(..., help="Classes of the model.")
HASH = 16  # of a file's hash, by which a photograph that was added is known again
OUT = typer.Option(None, "--out", "-o", help="Write the changed model here. [in its place]")


@app.command()
def add(
    model: Path = MODEL,
    data: str = typer.Argument("", help="Class folders or a table: photographs of known or new classes."),
    names: list[str] = typer.Option(
        [],
        "--name",
        help="A class known by its name alone until photographs of it are added; may be repeated.",
    ),
    out: Path | None = OUT,
    root: Path | None = typer.Option(None, help="The folder that a table's paths are relative to."),
    classes_file: Path | None = NAMES,
) -> None:
    """Learn more photographs, of known classes or of new ones, as if the model had been fitted on all.

    [bold]pbprompt model add model/ new-photos/[/bold]

    [bold]pbprompt model add model/ next.csv --out model2/[/bold] learns what was labelled in a table of
    `pbprompt next` or of `serve --label`. Photographs that were added before are left out.

    [bold]pbprompt model add model/ --name "red panda"[/bold] keeps a class that is given by name, as `predict
    --classes` adds it for one command.
    """
    if not data and not names:
        raise InputError("nothing to add: give a folder or table of photographs, or --name with a class name")

    def learned(tuned: "TunedModel") -> "Changed":
        named = tuned.with_classes(names) if names else tuned
        if not data:
            return named.with_left_out(), f"known by name: {', '.join(names)}", {}
        return _taught(named, data, root, classes_file)

    fitted = _change(model, out, learned).info.data
    tested = fitted.options.get("data") if fitted.test_images else "KEPT-ASIDE/"
    if data and out and tested:
        next_step(f"pbprompt evaluate {quote(out)} {quote(tested)} --against-model {quote(model)}")


def _taught(tuned: "TunedModel", data: str, root: Path | None, classes_file: Path | None) -> "Changed":
    from pbprompt.apps.audit.audit import open_images
    from pbprompt.files import file_hash
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.items import some

    dataset, labelled = open_images(data, root, classes_file=classes_file, fewest=1)
    if not labelled:
        raise InputError(f"{data}: no class folders in it: put each class's images in a folder of its own")
    known = set(tuned.info.data.added)
    hashes = {str(file_hash(dataset.file(item)))[:HASH]: item for item in dataset.single_label().items}
    items = [item for digest, item in hashes.items() if digest not in known]
    if not items:
        raise InputError(f"{data}: all of its {len(hashes):,} photographs were added before")
    features = FeatureCache(tuned.backbone).encode(dataset.root, items)
    labels = [dataset.classes[item.label] for item in items]
    taught = tuned.partial_fit(features.images, labels)
    new = [name for name in taught.classes if name not in tuned.classes]
    words = f"added {len(items):,} photographs of {some(dict.fromkeys(labels))}"
    words += f"; new: {some(new)}" if new else ""
    words += f"; {len(hashes) - len(items):,} were added before" if len(items) < len(hashes) else ""
    return taught, words, {"added": tuple(sorted({*known, *hashes}))}


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
    names: list[str] = CLASSES,
    into: str = typer.Option(..., "--into", help="What they are called together; may be one of them."),
    out: Path | None = OUT,
) -> None:
    """Make one class of several.

    [bold]pbprompt model merge model/ tabby siamese --into cat[/bold]
    """
    _regroup(model, out, dict.fromkeys(names, into), f"merged {', '.join(names)} into {into}")


@app.command()
def remove(model: Path = MODEL, names: list[str] = CLASSES, out: Path | None = OUT) -> None:
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

    What `add`, `rename`, `merge` and `remove` changed is in no source, so it is not in the new model.
    Where the sources lie is asked first: whoever made the model may have named any file of this machine.
    """
    from pbprompt.apps.cli.fit import FitCommand
    from pbprompt.apps.cli.fitting import run_fit
    from pbprompt.model.card import evaluated_on
    from pbprompt.model.tuned import TunedModel

    with _written(model, out) as place:
        before = TunedModel.load(model, device="auto")
        kept = before.info.data.options
        if not kept:
            raise InputError(f"{model}: does not say what it was fitted to: use `pbprompt fit`")
        towers, activation = [one["name"] for one in before.info.towers], before.info.activation
        work = place.absolute().parent / f".{place.absolute().name}.refit"  # what a kill leaves is replaced
        options = FitCommand.of(kept, out=work, backbone=towers, activation=activation, allow_urls=allow_urls)
        if not yes:  # tables and links in the model's folder lead out of it, too
            named = f"{model} names as its data: {', '.join(map(repr, options.sources))}"
            if not sys.stdin.isatty():
                raise InputError(f"{named}: add --yes to read what it names")
            typer.confirm(f"{named}\nRead it?", abort=True, err=True)
        for change in before.info.data.changes:
            print(f"note: not in the sources, so not in the new model: {as_text(str(change))}")
        try:
            shutil.rmtree(work, ignore_errors=True)
            run_fit(options)
            after = TunedModel.load(work, before.backbone)
            after.save(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    note(f"saved: {place}")
    _print_difference(before, after)
    former, now = (one.info.metrics.get("accuracy") for one in (before, after))
    if isinstance(former, float) and isinstance(now, float):
        print(f"on {evaluated_on(after.info.metrics)}: accuracy {former:.2%} before, {now:.2%} now")


def _regroup(model: Path, out: Path | None, named: dict[str, Any], words: str) -> None:
    for new in filter(None, named.values()):
        if not new.strip():
            raise InputError("a class name is empty: give one")

    def called(tuned: "TunedModel") -> "Changed":
        former, now = tuned.info.data.regrouped, tuned.own_labels(named)
        since = {old: now.get(new, new) if new else None for old, new in former.items()}
        return tuned.regrouped(named), words, {"regrouped": {**since, **now}}

    _change(model, out, called)


def _change(model: Path, out: Path | None, change: "Callable[[TunedModel], Changed]") -> "TunedModel":
    """Load, change, save with what is known of it now, and say what became of the figures."""
    from pbprompt.model.tuned import TunedModel

    with _written(model, out) as place:
        before = TunedModel.load(model, device="auto")
        after, words, facts = change(before)
        data = replace(after.info.data, changes=(*before.info.data.changes, words), **facts)
        after = replace(after, info=replace(after.info, data=data))
        after.save(place)
    print(words)
    _print_difference(before, after)
    return after


@contextmanager
def _written(model: Path, out: Path | None) -> Iterator[Path]:
    """Where the changed model goes, held from before it is read: of two at once the second waits."""
    from pbprompt.model.manifest import claim

    if out is None and not model.is_dir():
        raise InputError(f"{model}: no such folder: give one that `fit` wrote")
    with held(model) if out is None else claim(out):
        yield out or model


def _print_difference(before: "TunedModel", after: "TunedModel") -> None:
    """What the images that were left out say of both."""
    former = before if before.multi_label else before.with_left_out()
    for when, one in (("before", former), ("now", after)):
        found, judged = one.calibration, "not judged"
        if found is not None and found.classes == len(one.classes):
            loss = -sum(math.log(max(p, 1e-6)) for p in found.true) / len(found)
            judged = f"accuracy {sum(found.right) / len(found):.2%}, NLL {loss:.3f} by {found.rests_on}"
        print(f"{when}: {len(one.classes)} classes, {judged}")
