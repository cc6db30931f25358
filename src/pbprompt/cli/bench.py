"""`pbprompt bench`: measure on this machine, as ratios within one run."""

import typer

from pbprompt.cli.output import print_json

app = typer.Typer(help="Measure on this machine: ratios within one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine: ratios within one run."""


@app.command()
def text(
    classes: int = typer.Option(1000, min=1, help="How many class names."),
    ctx: int = typer.Option(4, min=1, help="How many context vectors."),
    tower: str = typer.Option("clip", help="clip (ViT-B/16's) or siglip (base, which is not causal)."),
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N."),
    dtype: str = typer.Option("float32", help="float32, bfloat16 or float16."),
    repeats: int = typer.Option(3, min=1, help="How often each is timed; the median counts."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of tables."),
) -> None:
    """The text engine against the plain computation over all positions, on a text tower of random weights."""

    from rich.console import Console
    from rich.table import Table

    from pbprompt import distributed
    from pbprompt.bench import bench_text

    report = bench_text(
        classes, ctx, device=distributed.pick(device), dtype=dtype, repeats=repeats, tower=tower
    )
    if as_json:
        print_json(report)
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
