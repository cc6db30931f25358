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
    from pbprompt.apps.labelling import next_images as labelling
    from pbprompt.files import as_text, held
    from pbprompt.learners.fitted import PartialFit
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.items import Item
    from pbprompt.vision.images.tables import is_multi_label

    def listed() -> tuple[list[labelling.Entry], set[str]]:
        rows = labelling.read_table(out) if out.exists() else []
        return rows, {row.image for row in rows}

    def check_enough(there: int) -> None:
        if count > there:
            others = f" that are not in {out} and can be read" if out.exists() else " that can be read"
            raise InputError(f"-n {count}: {folder} has {there:,} images{others}: ask for {there:,} or fewer")

    if by not in labelling.RULES:
        raise InputError(f"--by {by}: {suggest(by, labelling.RULES)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder: give one that holds the images to choose from")
    root = labelling.table_root(folder, out)
    names = labelling.names_in_table(folder, out)
    former, known = listed()
    items = [Item(name, 0) for name in names if name not in known]
    if not items:
        raise InputError(f"{folder}: all of its {len(names):,} images are in {out} already: nothing to label")
    check_enough(len(items))
    tuned = TunedModel.load(model, backbone, device)
    column = "labels" if tuned.multi_label else "label"
    if former and is_multi_label(out) != tuned.multi_label:
        raise InputError(f"{out}: has no column {column!r}, which {model} fills: give another --out")
    failures: dict[str, InputError] = {}
    features = FeatureCache(tuned.backbone, progress=not as_json).encode(root, items, failures)
    for error in failures.values():
        tell(error)
    items = [item for item in items if item.path not in failures]
    check_enough(len(items))
    predicted = tuned.predict(features.images)
    groups = labelling.series_among(features.global_, predicted)
    chosen = labelling.next_images(features.global_, predicted, count, by, seed, groups)
    paths = [items[one.row].path for one in chosen]
    new = [
        labelling.Entry(path, "", one.label, f"{one.probability:.4f}", f"{one.score:.4f}")
        for path, one in zip(paths, chosen, strict=True)
    ]
    with held(out.parent):  # who fills the table in meanwhile has changed it since it was read
        former, known = listed()
        rows = [*former, *(row for row in new if row.image not in known)]
        labelling.write_table(out, rows, multi_label=tuned.multi_label)
    columns, cells = ("image", "suggested", "probability", "score"), []
    for path, one in zip(map(as_text, paths), chosen, strict=True):
        if as_json:
            print_json(dict(zip(columns, (path, one.label, one.probability, one.score), strict=True)))
        cells.append((path, one.label, f"{one.probability:.1%}", f"{one.score:.3f}"))
    if not as_json:
        print_table(columns, cells, right=columns[2:], paths=columns[:1])
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
