"""`pbprompt look`: what is in a folder of images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from pbprompt.apps.cli.options import ACTIVATION, DEVICE, NAMES, ROOT
from pbprompt.apps.cli.output import next_step, print_json, print_table, quote, tell

if TYPE_CHECKING:
    from pbprompt.apps.audit.audit import Audit

SHOWN_CLASSES = 12
COUNTS = ("train", "val", "test", "all", "confused")  # columns of numbers


def look(
    data: str = typer.Argument(
        ..., help="A folder, table or split file; a benchmark's name with --root; images without labels."
    ),
    html: Path | None = typer.Option(None, help="Write one page with small pictures to this file."),
    corrections: Path | None = typer.Option(
        None,
        help="Write a table of what was found to this .csv file: decide in it, then `fit --corrections`.",
    ),
    most: int = typer.Option(8, min=1, help="Findings of each kind to print."),
    backbone: list[str] = typer.Option(
        ["lite"], help="lite, lite-vit, an OpenAI name, a file, folder or hub id; of several the first."
    ),
    activation: str | None = ACTIVATION,
    device: str = DEVICE,
    root: Path | None = ROOT,
    classes_file: Path | None = NAMES,
    as_json: bool = typer.Option(False, "--json", help="Print everything that was found as one JSON object."),
) -> None:
    """See what is in your images before you fit: counts, sizes, duplicates, wrong labels.

    [bold]pbprompt look photos/ --html look.html[/bold]

    Every image is judged by a classifier that was fitted to all the others. A label is likely wrong where
    another class is at least twenty times as likely; two classes overlap where their images are taken for
    each other; the least familiar images look least like any of the classes. Duplicates are compared by
    pixels, also across splits (a test flatters then) and classes (then one label is wrong). Poor pictures
    are tiny, dark, blurred or of odd shape. Nothing is changed: decide what to keep, relabel or drop, on the
    page or in the table of [bold]--corrections[/bold], and [bold]pbprompt fit --corrections[/bold] does so.
    """
    from pbprompt.apps.audit.audit import look as look_at
    from pbprompt.apps.audit.corrections import write_corrections
    from pbprompt.apps.audit.page import write_page
    from pbprompt.vision.towers.loading.load import load_backbone

    first, *others = backbone
    if others:
        tell(f"looking by {first} alone, the first of the backbones; {', '.join(others)} not asked")
    towers = load_backbone(first, activation=activation, device=device)
    found = look_at(data, root, backbone=towers, classes_file=classes_file, progress=not as_json)
    if html is not None:
        write_page(found, html)
    if corrections is not None:
        write_corrections(found, corrections)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found, most)
    for written in filter(None, (html, corrections)):
        print(f"wrote {written}", file=sys.stderr)
    if found.labelled and not as_json:
        given = f"{quote(data)}{f' --root {quote(root)}' if root else ''}"
        decided = f" --corrections {quote(corrections)}" if corrections else ""
        page = html and not corrections and not found.multi_label
        why = f"with --corrections corrections.csv, once you have decided on {html}" if page else ""
        next_step(f"pbprompt fit {given}{decided} --out model/", why)


def _print(found: "Audit", most: int) -> None:
    from pbprompt.apps.audit.page import class_lines, duplicate_words, headline, size_words, worst_duplicates

    console = Console(markup=False, highlight=False)

    def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int = most) -> None:
        """A table with its title; nothing found is said in a line."""
        console.print(f"\n{title}" if rows else f"\n{title}: none", style="bold" if rows else None)
        if rows:
            paths = ("image", "images", "file")
            print_table(columns, rows[:most], right=COUNTS, paths=paths, console=console)

    def findings(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        more = f", {most} shown (--most, --json or --html for more)" if len(rows) > most else ""
        table(f"{title}: {len(rows):,}{more}" if rows else title, columns, rows)

    console.print(headline(found))
    console.print(size_words(found))
    for note in found.notes:
        console.print(f"{note}.")
    if found.labelled:
        lines = list(class_lines(found))
        half, title = SHOWN_CLASSES // 2, "Images per class"
        if len(lines) > SHOWN_CLASSES:
            title += f" (smallest and largest of {len(lines)})"
            lines = [*lines[:half], *lines[-half:]]
        table(title, ("class", *COUNTS[:4]), lines, len(lines))
    names, paths = found.classes, [image.path for image in found.images]
    rows: list[tuple[object, ...]] = []
    for error in found.label_errors:
        likely = f"{found.suggested(error)} {error.suggested_probability:.0%}"
        rows.append((paths[error.row], found.labelled_as(error.row), likely))
    findings("Likely label errors", ("image", "labelled", "looks like"), rows)
    copies = [
        ("\n".join(paths[row] for row in group.rows), ", ".join(duplicate_words(found, group)))
        for group in worst_duplicates(found)
    ]
    findings("Duplicates", ("images", "what"), copies)
    pairs = [
        (names[one.first], names[one.second], f"{one.confused} of {one.images}") for one in found.overlaps
    ]
    findings("Overlapping classes", ("class", "class", "confused"), pairs)
    far = [(paths[one.row], names[found.images[one.row].label]) for one in found.outliers]
    findings("Least familiar images", ("image", "labelled"), far)
    findings("Poor pictures", ("image", "why"), [(paths[one.row], one.why) for one in found.poor])
    findings("Unreadable files", ("file", "why"), found.unreadable)
