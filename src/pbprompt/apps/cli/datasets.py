"""`pbprompt research datasets`: list, check, show and draw from datasets."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pbprompt.apps.cli.output import print_table
from pbprompt.errors import InputError
from pbprompt.files import as_text

if TYPE_CHECKING:
    from pbprompt.vision.images.catalog import Benchmark

app = typer.Typer(
    help="Benchmarks and your own data: list, fetch, check, show, draw.", invoke_without_command=True
)

ROOT = typer.Option(None, help="Folder that holds the benchmark (default: $PBPROMPT_DATA).")
NAMES = typer.Option(
    None, "--names", "--classes-file", help="JSON, CSV or 'label: name' lines: names to read."
)
SEED = typer.Option(1, help="Seed of the draw, and of the split where the data has none.")
NAME = typer.Argument(..., help="Benchmark name, as `pbprompt research datasets` lists it.")
DATA = typer.Argument(..., help="Folder, table, split file, hf:owner/name or benchmark name.")


@app.callback()
def list_benchmarks(context: typer.Context) -> None:
    """List the benchmarks pbprompt knows."""
    if context.invoked_subcommand is not None:
        return
    from pbprompt.vision.images.catalog import benchmarks

    numbers = ("classes", "train", "val", "test")
    rows = []
    for one in benchmarks().values():
        counts = ("–" if count is None else f"{count:,}" for count in (one.classes, *one.counts))
        rows.append((one.name, *counts, one.folder))
    print_table(("name", *numbers, "folder"), rows, right=numbers)
    print("Licences, and where to obtain them:")
    for one in benchmarks().values():
        print(f"- {one.title}: {one.licence}; {one.source}")


@app.command()
def fetch(name: str = NAME, root: Path | None = ROOT) -> None:
    """Bring a benchmark here from its makers, checked by size and checksum, and verify it as `check` does.

    Run again, it goes on where it ended. What cannot be fetched is told with where to obtain it.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from pbprompt.vision.images import catalog
    from pbprompt.vision.images.catalog import fetch as fetch_benchmark

    benchmark = catalog.find(name)
    print(f"{benchmark.title}: {benchmark.licence}")
    shown = TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn()
    with Progress(*shown, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[Path, TaskID] = {}

        def watch(file: Path, done: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file.stem.lstrip("."), total=size)
            bars.update(tasks[file], completed=done)

        fetch_benchmark(benchmark, root or _usual_root(benchmark), watch)
    if benchmark.by_hand:
        print(f"by hand: {benchmark.by_hand}: {benchmark.source}")
    check(name, root)


@app.command()
def check(name: str = NAME, root: Path | None = ROOT) -> None:
    """Verify a benchmark's layout, counts and files; exit with 1 where something is missing."""
    from pbprompt.vision.images import catalog
    from pbprompt.vision.images.catalog import check as check_benchmark

    benchmark = catalog.find(name)
    report = check_benchmark(benchmark, root or _usual_root(benchmark))
    if report.found:
        print(f"{report.title} in {report.folder}")
        print_table(("", "expected", "found"), report.found)
    for problem in report.problems:
        print(f"- {problem}")
    print(f"not complete: {len(report.problems)} to fix" if report.problems else "complete")
    raise typer.Exit(1 if report.problems else 0)


def _usual_root(benchmark: "Benchmark") -> str | Path:
    import os

    from pbprompt.vision.images import catalog
    from pbprompt.vision.images.sources import ROOT_VARIABLE

    return catalog.SAMPLE if benchmark.name == "sample" else os.environ.get(ROOT_VARIABLE, ".")


@app.command()
def show(
    data: str = DATA,
    root: Path | None = ROOT,
    classes_file: Path | None = NAMES,
    seed: int = SEED,
    decode: bool = typer.Option(False, help="Also decode every image and name the bad ones."),
) -> None:
    """Say what a dataset holds: classes, splits, domains, what was skipped and why."""
    from collections import Counter

    from pbprompt.vision.images.items import SPLITS
    from pbprompt.vision.images.sources import open_dataset

    dataset = open_dataset(data, root, classes_file=classes_file, seed=seed)
    print(dataset.describe())
    print(f"content hash {dataset.content_hash}")
    splits = [Counter(item.label for item in dataset.split(name)) for name in SPLITS]
    rows = [(at, name, *(counts[at] for counts in splits)) for at, name in enumerate(dataset.classes)]
    print_table(("label", "class", *SPLITS), rows, right=("label", *SPLITS))
    for path, reason in dataset.skipped:
        print(f"skipped {as_text(path)}: {reason}")
    if decode:
        from rich.console import Console
        from rich.progress import track

        from pbprompt.vision.images.crops import Crop
        from pbprompt.vision.images.decoding import squares_of

        files = [dataset.file(item) for item in dataset.items]
        decoded = squares_of(files, Crop(1))
        results = track(decoded, "decoding", total=len(files), console=Console(stderr=True))
        bad = [one for one in results if isinstance(one, InputError)]
        for error in bad:
            print(error)
        raise typer.Exit(1 if bad else 0)


@app.command()
def draw(
    data: str = DATA,
    shots: int = typer.Option(..., help="Training images per class."),
    out: Path = typer.Option(..., help="JSONL file to write the drawn items to."),
    seed: int = SEED,
    root: Path | None = ROOT,
    classes_file: Path | None = NAMES,
) -> None:
    """Draw a few-shot training set as the field's protocol does, and write it to a file."""
    from pbprompt.vision.images.build_dataset import OF_A_DRAW
    from pbprompt.vision.images.fewshot import draw as draw_items
    from pbprompt.vision.images.fewshot import write_draw
    from pbprompt.vision.images.sources import open_dataset

    dataset = open_dataset(data, root, classes_file=classes_file, seed=seed, held_out=OF_A_DRAW)
    drawn = draw_items(dataset, shots, seed)
    write_draw(out, drawn)
    print(drawn.describe())
    print(f"{out}: hash {drawn.hash}")
