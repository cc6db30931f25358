"""`pbprompt report`: finished runs as one page to read."""

from pathlib import Path

import typer


def report(
    runs: Path = typer.Argument(..., help="The folder that runs were written to."),
    out: Path = typer.Option(..., help="The folder to write to; it is made if need be."),
) -> None:
    """Write OUT/index.html, one page with tables, figures and failures, and OUT/figures/*.svg."""
    from pbprompt.research.report.page import write_page
    from pbprompt.research.runs import RunStore

    write_page(RunStore(runs), out / "index.html", figures=out / "figures")
    typer.echo(f"wrote {out / 'index.html'}")
