"""`pbprompt research runs` and `report`: the results that are there: list, show, export, make a page."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pbprompt.apps.cli.output import print_json, print_table
from pbprompt.errors import InputError
from pbprompt.files import as_csv, write_text

if TYPE_CHECKING:
    from pbprompt.research.runs import RunRecord, RunStore

app = typer.Typer(help="Finished runs: list, show, export.", invoke_without_command=True)

Folder = Annotated[Path, typer.Option("--runs", help="The folder of results.")]
TaskName = Annotated[str, typer.Option("--task", help="Only this task: few-shot, base-to-new, …")]
DatasetName = Annotated[str, typer.Option("--dataset", help="Only this dataset.")]
MethodName = Annotated[str, typer.Option("--method", help="Only this method.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Only this seed.")]
DEFAULT = Path("runs")


@app.callback()
def runs(
    context: typer.Context,
    folder: Folder = DEFAULT,
    task: TaskName = "",
    dataset: DatasetName = "",
    method: MethodName = "",
    seed: Seed = None,
) -> None:
    """List the finished runs, in the order they were added."""
    if context.invoked_subcommand is not None:
        if folder != DEFAULT or task or dataset or method or seed is not None:
            verb = f"pbprompt research runs {context.invoked_subcommand} …"
            raise InputError(f"options go after the verb: {verb}")
        return
    from pbprompt.research.provenance import is_current

    store = _store(folder)
    found = _found(store, task=task, dataset=dataset, method=method, seed=seed)
    columns = ("id", "task", "dataset", "method", "shots", "seed", "result", "finished", "code")
    rows = []
    for one in found:
        of = one.config
        code = "present" if is_current(one) else "other"
        what = (one.id, of.task, of.place, of.row(), of.shots, of.seed)
        rows.append((*what, one.headline, one.finished[:16], code))
    print_table(columns, rows, console=Console(width=1000))  # an id that is broken cannot be copied
    failed = len({failure.id for failure in store.failures()})
    print(f"{len(found)} of {len(store.finished())} runs in {folder}, {failed} failed")


@app.command()
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A run's id, or how it begins.")],
    folder: Folder = DEFAULT,
) -> None:
    """Print one run's record: settings, data, draw, backbone and all figures, as JSON."""
    print_json(asdict(_store(folder).find(identity)), indent=2)


@app.command()
def export(
    csv_file: Annotated[Path, typer.Option("--csv", help="The file to write.")],
    folder: Folder = DEFAULT,
    task: TaskName = "",
    dataset: DatasetName = "",
    method: MethodName = "",
    seed: Seed = None,
) -> None:
    """Write the runs as CSV: one line for each test of each run, with every figure."""
    found = _found(_store(folder), task=task, dataset=dataset, method=method, seed=seed)
    lines = [line for record in found for line in _lines(record)]
    fields = list(dict.fromkeys(key for line in lines for key in line))
    write_text(csv_file, as_csv([fields, *([line.get(key) for key in fields] for line in lines)]))
    print(f"{len(found)} runs, {len(lines)} lines in {csv_file}")


def report(
    runs: Path = typer.Argument(..., help="The folder that runs were written to."),
    out: Path = typer.Option(..., help="The folder to write to; it is made if need be."),
) -> None:
    """Write OUT/index.html, one page with tables, figures and failures, and OUT/figures/*.svg."""
    from pbprompt.research.report.page import write_page
    from pbprompt.research.runs import RunStore

    write_page(RunStore(runs), out / "index.html", figures=out / "figures")
    typer.echo(f"wrote {out / 'index.html'}")


def _store(folder: Path) -> "RunStore":
    from pbprompt.research.runs import RunStore

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of results: give one that `reproduce` wrote")
    return RunStore(folder)


def _found(store: "RunStore", **wanted: Any) -> list["RunRecord"]:
    """The records whose config has all the wanted values; an empty one does not matter."""
    given = {(key, value) for key, value in wanted.items() if value not in ("", None)}
    return [one for one in store.records() if given <= {*vars(one.config).items()}]


def _lines(record: "RunRecord") -> list[dict[str, Any]]:
    """One line a test: what was run, and every figure of it."""
    config = {key: " ".join(v) if isinstance(v, tuple) else v for key, v in vars(record.config).items()}
    what = {
        "id": record.id,
        **config,
        "backbone": record.backbone.name,
        "draw": record.data.draw,
        "seconds": record.seconds,
        "finished": record.finished,
    }
    return [{**what, "test": test, **figures} for test, figures in record.results.items()]
