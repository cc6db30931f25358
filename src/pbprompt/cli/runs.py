"""`pbprompt runs`: the results that are there: list, show one, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.runs.store import RunStore

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
            raise InputError(f"options go after the verb: pbprompt runs {context.invoked_subcommand} …")
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    store = _store(folder)
    found = _filtered(store.records(), task=task, dataset=dataset, method=method, seed=seed)
    table = Table("id", "task", "dataset", "method", "shots", "seed", "result", "finished", box=box.SIMPLE)
    for record in found:
        config = record["config"]
        name = " ".join(filter(None, (config["method"], config["variant"], *config["overrides"])))
        name += f" ({config['preset']})" * (config["preset"] != "default")
        shown = (record["id"], config["task"], config["dataset"], name, config["shots"], config["seed"])
        table.add_row(*map(escape, map(str, shown)), _headline(record), record.get("finished", "")[:16])
    # as wide as it needs to be: an id that is cut cannot be copied
    console = Console(width=max(80, Console(width=1000).measure(table).maximum))
    console.print(table)
    failed = len({failure["id"] for failure in store.failures()})
    console.print(
        f"{len(found)} of {len(store.finished())} runs in {folder}, {failed} failed",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="A run's id, or how it begins.")],
    folder: Folder = DEFAULT,
) -> None:
    """Print one run's record: settings, data, draw, backbone and all figures, as JSON."""
    import json

    print(json.dumps(_store(folder).find(identity), indent=2, ensure_ascii=False))


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
    import csv
    import io

    from pbprompt.files import write_text

    found = _filtered(_store(folder).records(), task=task, dataset=dataset, method=method, seed=seed)
    lines = [line for record in found for line in _lines(record)]
    fields = list(dict.fromkeys(key for line in lines for key in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(csv_file, out.getvalue())
    print(f"{len(found)} runs, {len(lines)} lines in {csv_file}")


def _store(folder: Path) -> "RunStore":
    from pbprompt.runs.store import RunStore

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of results: give one with --runs")
    return RunStore(folder)


def _filtered(records: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The records whose config has all the wanted values; an empty one does not matter."""
    asked = {key: value for key, value in wanted.items() if value not in ("", None)}
    return [record for record in records if asked.items() <= _plain(record["config"]).items()]


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {key: " ".join(value) if isinstance(value, list) else value for key, value in config.items()}


def _headline(record: dict[str, Any]) -> str:
    """The figure that a run is about, in %."""
    config, results = record["config"], record["results"]
    if config["task"] == "base-to-new":
        base, new, both = (100 * results[key]["accuracy"] for key in ("base", "new", "H"))
        return f"H {both:.2f} (base {base:.2f}, new {new:.2f})"
    own = 100 * results[config["dataset"]]["accuracy"]
    if not config["targets"]:
        return f"{own:.2f}"
    others = [100 * results[target]["accuracy"] for target in config["targets"]]
    return f"{own:.2f}, targets {sum(others) / len(others):.2f}"


def _lines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One line a test: what was run, and every figure of it."""
    what = {
        "id": record["id"],
        **_plain(record["config"]),
        "backbone": record["backbone"]["name"],
        "draw": record["data"]["draw"],
        "seconds": record["seconds"],
        "finished": record.get("finished", ""),
    }
    return [{**what, "test": test, **figures} for test, figures in record["results"].items()]
