"""`pbprompt bench`: measure on this machine, as ratios within one run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pbprompt.bench.setups import Options

app = typer.Typer(help="Measure on this machine: ratios within one run.", no_args_is_help=True)

Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Out = Annotated[
    Path | None, typer.Option(help="A file of results, to which this is added row by row as it is measured.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A try-out with tiny sizes, in under a minute.")]
Whole = Annotated[bool, typer.Option("--whole", help="Run the fit from cached features to its end.")]
Images = Annotated[int | None, typer.Option(min=16, help="How many JPEG files the whole run has.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="How many epochs the whole run has.")]


@app.callback()
def bench() -> None:
    """Measure on this machine: ratios within one run."""


@app.command("all")
def everything(
    device: Device = "cpu",
    quick: Quick = False,
    whole: Whole = False,
    images: Images = None,
    epochs: Epochs = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Every part below, one after the other: some ten minutes on two processors.

    A part that fails is named, and the others go on.

    Example: [bold]pbprompt bench all --out benchmarks/results/my-machine.json[/bold]
    """
    from pbprompt.bench.parts import PARTS
    from pbprompt.bench.setups import Options

    _measure(list(PARTS), Options(device, quick, whole, images, epochs), out, as_json)


@app.command()
def steps(device: Device = "cpu", quick: Quick = False, out: Out = None, as_json: AsJson = False) -> None:
    """One training step of five methods: ours against the plain way, with the difference between them."""
    _measure_one("steps", out, as_json, device=device, quick=quick)


@app.command()
def fit(
    device: Device = "cpu",
    quick: Quick = False,
    whole: Whole = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """From image files to the tuned method: ours against the image tower in every step."""
    _measure_one("fit", out, as_json, device=device, quick=quick, whole=whole)


@app.command()
def predict(device: Device = "cpu", quick: Quick = False, out: Out = None, as_json: AsJson = False) -> None:
    """Images/s of the image tower, and of predictions on top of it."""
    _measure_one("predict", out, as_json, device=device, quick=quick)


@app.command()
def imagenet(
    device: Device = "cpu",
    quick: Quick = False,
    images: Images = None,
    epochs: Epochs = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """A whole PBPrompt run from JPEG files with fresh views; on CUDA 16,000 files and 10 epochs."""
    _measure_one("imagenet", out, as_json, device=device, quick=quick, images=images, epochs=epochs)


@app.command()
def classes(device: Device = "cpu", quick: Quick = False, out: Out = None, as_json: AsJson = False) -> None:
    """One training step over 21,000 classes: time and memory."""
    _measure_one("classes", out, as_json, device=device, quick=quick)


@app.command()
def growth(device: Device = "cpu", quick: Quick = False, out: Out = None, as_json: AsJson = False) -> None:
    """Time and memory against classes, samples, patches, batch and images."""
    _measure_one("growth", out, as_json, device=device, quick=quick)


@app.command()
def report(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of results; default: all in benchmarks/results.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The document; its plot goes to images/ beside it.")] = Path(
        "docs/performance.md"
    ),
) -> None:
    """Write the document of all results, with a plot."""
    from pbprompt.bench.report import write_report

    write_report(files or [], out)
    print(f"wrote {out}")


@app.command()
def text(
    classes: int = typer.Option(1000, min=1, help="How many class names."),
    ctx: int = typer.Option(4, min=1, help="How many context vectors."),
    device: Device = "cpu",
    dtype: str = typer.Option("float32", help="float32, bfloat16 or float16."),
    repeats: int = typer.Option(3, min=1, help="How often each is timed; the median counts."),
    as_json: AsJson = False,
) -> None:
    """The text engine against the plain 77-position computation (ViT-B/16 text tower, random weights)."""
    import json

    from rich.console import Console
    from rich.table import Table

    from pbprompt.bench.text import bench_text

    report = bench_text(classes, ctx, device=device, dtype=dtype, repeats=repeats)
    if as_json:
        print(json.dumps(report))
        return
    console = Console()
    console.print(report["title"])
    table = Table(
        "context", "pass", "plain s", "engine s", "ratio", "plain GiB", "engine GiB", "ratio", box=None
    )
    for row in report["rows"]:
        table.add_row(
            row["context"],
            row["pass"],
            f"{row['plain_seconds']:.4f}",
            f"{row['engine_seconds']:.4f}",
            f"{row['speedup']:.1f}×",
            f"{row['plain_gib']:.2f}",
            f"{row['engine_gib']:.2f}",
            f"{row['memory_ratio']:.1f}×",
        )
    console.print(table)
    console.print(f"[dim]{report['note']}[/]")


def _measure_one(part: str, out: Path | None, as_json: bool, **options: Any) -> None:
    from pbprompt.bench.setups import Options

    _measure([part], Options(**options), out, as_json)


def _measure(names: list[str], options: "Options", out: Path | None, as_json: bool) -> None:
    """Run the parts, show each when it is done; exit with 1 where one failed."""
    import json

    from rich.console import Console

    from pbprompt.bench.measure import take_device
    from pbprompt.bench.parts import run_part
    from pbprompt.bench.results import FORMAT
    from pbprompt.errors import InputError

    take_device(options.device)
    notices = Console(stderr=True, highlight=False)
    parts: dict[str, Any] = {}
    failed = False
    for name in names:
        with notices.status(f"measuring {name}"):
            try:
                parts[name] = run_part(name, options, out)
            except InputError:
                raise
            except Exception as error:  # what one part meets must not cost the others
                if len(names) == 1:
                    raise
                failed = True
                notices.print(f"{name} failed: {type(error).__name__}: {error}", markup=False)
                continue
        if not as_json:
            _show(name, parts[name])
    if as_json:
        print(json.dumps({"format": FORMAT, "parts": parts}, ensure_ascii=False))
    if failed:
        raise typer.Exit(1)


def _show(name: str, part: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from pbprompt.bench.tables import TITLES, table

    machine = part["machine"]
    headings, rows = table(name, part["rows"])
    shown = Table(*map(escape, headings), box=None)
    for row in rows:
        shown.add_row(*map(escape, row))
    # as wide as it needs to be: half a figure is none
    console = Console(highlight=False, width=max(80, Console(width=1000).measure(shown).maximum))
    console.print(f"\n[bold]{TITLES[name]}[/]: {escape(machine['device'])}, {machine['threads']} threads")
    console.print(shown)
