"""`pbprompt next`: which unlabelled images to label next."""

from pathlib import Path

import typer

from pbprompt.apps.cli.options import BACKBONE, BY_MODEL, DEVICE
from pbprompt.apps.cli.output import next_step, print_json, print_table, quote, tell
from pbprompt.errors import InputError, suggest


def next_images(
    folder: Path = typer.Argument(..., help="A folder of images without labels, at any depth."),
    model: Path = BY_MODEL,
    count: int = typer.Option(20, "--count", "-n", min=1, help="How many images to choose."),
    by: str = typer.Option("diverse", help="diverse, margin, epistemic or random; see below."),
    out: Path = typer.Option(Path("next.csv"), "--out", "-o", help="Table to write, or to add rows to."),
    seed: int = typer.Option(0, help="Seed of `diverse` and `random`."),
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per image."),
) -> None:
    """Choose the images whose labels would teach the model most, and write a table to fill in.

    [bold]pbprompt next unlabelled/ --model model/ -n 20 --out labels.csv[/bold]

    Fill in the column `label` (`suggested` is what the model would say), then let the model learn them:
    [bold]pbprompt model add model/ labels.csv --root unlabelled/ --out model2/[/bold]. The same command with
    the new model adds further images below those that are there.

    `diverse` takes images that the model is in doubt about and that are unlike each other, `margin` those
    where one class leads the next by the least, `epistemic` those on which the sampled classifiers disagree
    most, `random` any. Of images of one scene, such as a burst, one is chosen, while there are others. How
    many labels each saves: docs/label-next.md. With a multi-label model doubt is summed over the labels, and
    the column to fill in is `labels`.
    """
    from pbprompt.apps.labelling.next_images import (
        RULES,
        Entry,
        names_in_table,
        read_table,
        series_among,
        table_root,
        write_table,
    )
    from pbprompt.apps.labelling.next_images import next_images as choose
    from pbprompt.files import as_text, held
    from pbprompt.learners.fitted import PartialFit
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.items import Item
    from pbprompt.vision.images.tables import is_multi_label

    if by not in RULES:
        raise InputError(f"--by {by}: {suggest(by, RULES)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder: give one that holds the images to choose from")
    root = table_root(folder, out)
    names = names_in_table(folder, out)
    former = read_table(out) if out.exists() else []
    listed = {row.image for row in former}
    items = [Item(name, 0) for name in names if name not in listed]
    if not items:
        raise InputError(f"{folder}: all of its {len(names):,} images are in {out} already: nothing to label")
    _check_enough(count, len(items), folder, out)
    tuned = TunedModel.load(model, backbone, device)
    column = "labels" if tuned.multi_label else "label"
    if former and is_multi_label(out) != tuned.multi_label:
        raise InputError(f"{out}: has no column {column!r}, which {model} fills: give another --out")
    failures: dict[str, InputError] = {}
    features = FeatureCache(tuned.backbone, progress=not as_json).encode(root, items, failures)
    for error in failures.values():
        tell(error)
    items = [item for item in items if item.path not in failures]
    _check_enough(count, len(items), folder, out)
    said = tuned.predict(features.images)
    groups = series_among(features.global_, said)
    chosen = choose(features.global_, said, count, by, seed, groups)
    new = [
        Entry(items[one.row].path, "", one.label, f"{one.probability:.4f}", f"{one.score:.4f}")
        for one in chosen
    ]
    with held(out.parent):  # who fills the table in meanwhile has changed it since it was read
        former = read_table(out) if out.exists() else []
        listed = {row.image for row in former}
        new = [row for row in new if row.image not in listed]
        write_table(out, [*former, *new], multi_label=tuned.multi_label)
    columns = ("image", "suggested", "probability", "score")
    told = [(as_text(items[one.row].path), one.label, one.probability, one.score) for one in chosen]
    if as_json:
        for values in told:
            print_json(dict(zip(columns, values, strict=True)))
    else:
        rows = [(image, label, f"{share:.1%}", f"{score:.3f}") for image, label, share, score in told]
        print_table(columns, rows, right=("probability", "score"), paths=("image",))
    empty = sum(not row.label for row in former)
    if empty and not tuned.multi_label:
        tell(f"{empty} earlier rows of {out} have no label yet")
    hint = " (as in beach|dog; an empty cell says none of them)" if tuned.multi_label else ""
    tell(f"wrote {out}: fill in its column `{column}`{hint}")
    if tuned.multi_label or not isinstance(tuned.method, PartialFit):
        tell(f"add these images, labelled, to the data that {model} was fitted to")
        next_step(f"pbprompt model refit {quote(model)} --out NEW-MODEL")
    else:
        where = "" if root == out.parent.resolve() else f" --root {quote(folder)}"
        next_step(f"pbprompt model add {quote(model)} {quote(out)}{where} --out NEW-MODEL")


def _check_enough(wanted: int, there: int, folder: Path, out: Path) -> None:
    if wanted > there:
        others = f" that are not in {out} and can be read" if out.exists() else " that can be read"
        raise InputError(f"-n {wanted}: {folder} has {there:,} images{others}: ask for {there:,} or fewer")
