"""Measure this checkout's speed: ours against the plain way, as ratios within one run.

python -m benchmarks.speed measure --out benchmarks/results/my-machine.json
python -m benchmarks.speed measure steps predict --quick
python -m benchmarks.speed text --classes 100
python -m benchmarks.speed remark benchmarks/results/my-machine.json steps "the fan was broken"
python -m benchmarks.speed report
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.speed import parts
from benchmarks.speed.measuring import take_device
from benchmarks.speed.report import write_report
from benchmarks.speed.results import FORMAT, add_remark
from benchmarks.speed.setups import Options
from benchmarks.speed.tables import TITLES, table
from benchmarks.speed.text import bench_text
from pbprompt import distributed
from pbprompt.errors import InputError

app = typer.Typer(
    help="Measure this checkout's speed: ratios within one run.", no_args_is_help=True, add_completion=False
)


@app.command()
def measure(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PART", help=f"Of {', '.join(parts.PARTS)}; default: all.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="A try-out with tiny sizes, in a minute.")] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="In `fit`, run the fit from cached features to its end.")
    ] = False,
    images: Annotated[
        int | None, typer.Option(min=16, help="How many images `imagenet` and `stream` have.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How many epochs `imagenet` has.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A file of results, to which this is added row by row as it is measured."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure all parts (some ten minutes on two processors) or those named, and show each when it is done.

    steps: one training step of five methods, with the difference between both ways. fit: from image files to
    the tuned method. predict: images/s of the image tower, and of predictions on top of it. imagenet: a whole
    PBPrompt run from JPEG files with fresh views; on CUDA 16,000 files and 10 epochs. classes: one step over
    21,000 classes. growth: time and memory against classes, samples, patches, batch and images. stream: the
    pass of a streamed fit over as many features as ImageNet has images, beside a copy of them. conjugate: its
    time and memory against images up to a million and classes up to 21,000. stages: where the processor time
    of `pbprompt fit` goes, from cached features.

    Of several parts one that fails is named, and the others go on.
    """
    names = names or list(parts.PARTS)
    if strange := [name for name in names if name not in parts.PARTS]:
        raise InputError(f"no part is named {strange[0]!r}: choose of {', '.join(parts.PARTS)}")
    options = Options(device, quick, whole, images, epochs)
    take_device(device)
    notices = Console(stderr=True, highlight=False)
    measured: dict[str, Any] = {}
    for name in names:
        with notices.status(f"measuring {name}"):
            try:
                measured[name] = parts.run_part(name, options, out)
            except InputError:
                raise
            except Exception as error:  # what one part meets must not cost the others
                if len(names) == 1:
                    raise
                notices.print(f"{name} failed: {type(error).__name__}: {error}", markup=False)
                continue
        if not as_json:
            _show(name, measured[name])
    if as_json:
        print(json.dumps({"format": FORMAT, "parts": measured}, ensure_ascii=False))
    if len(measured) < len(names):
        raise typer.Exit(1)


@app.command()
def text(
    classes: Annotated[int, typer.Option(min=1, help="How many class names.")] = 1000,
    ctx: Annotated[int, typer.Option(min=1, help="How many context vectors.")] = 4,
    tower: Annotated[str, typer.Option(help="clip (ViT-B/16's) or siglip (base, not causal).")] = "clip",
    device: Annotated[
        str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="How often each is timed; the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """The text engine against the plain computation over all positions, on a text tower of random weights."""
    found = bench_text(
        classes, ctx, device=distributed.pick(device), dtype=dtype, repeats=repeats, tower=tower
    )
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    console = Console()
    console.print(found["title"])
    heads = ("context", "pass", "plain s", "engine s", "ratio", "plain GiB", "engine GiB", "ratio")
    shown = Table(*heads, box=None)
    for row in found["rows"]:
        seconds = [f"{row[key]:.4f}" for key in ("plain_seconds", "engine_seconds")]
        memory = [f"{row[key]:.2f}" for key in ("plain_gib", "engine_gib")]
        ratios = [f"{row[key]:.1f}×" for key in ("speedup", "memory_ratio")]
        shown.add_row(row["context"], row["pass"], *seconds, ratios[0], *memory, ratios[1])
    console.print(shown)
    console.print(f"[dim]{found['note']}[/]")


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
    write_report(files or [], out)
    print(f"wrote {out}")


@app.command()
def remark(
    file: Annotated[Path, typer.Argument(help="A file of results.")],
    part: Annotated[str, typer.Argument(help="Which of its parts.")],
    text: Annotated[str, typer.Argument(help="What a reader of the part should know.")],
) -> None:
    """Put a remark beside a part of the results, which the report shows; the figures stay as measured."""
    add_remark(file, part, text)


def _show(name: str, part: dict[str, Any]) -> None:
    machine = part["machine"]
    headings, rows = table(name, part["rows"])
    shown = Table(*map(escape, headings), box=None)
    for row in rows:
        shown.add_row(*map(escape, row))
    # as wide as it needs to be: half a figure is none
    console = Console(highlight=False, width=max(80, Console(width=1000).measure(shown).maximum))
    console.print(f"\n[bold]{TITLES[name]}[/]: {escape(machine['device'])}, {machine['threads']} threads")
    console.print(shown)


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.speed")
    except InputError as error:
        sys.exit(f"benchmarks.speed: {error}")
