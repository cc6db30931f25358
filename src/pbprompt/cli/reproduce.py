"""`pbprompt reproduce`: from the name of a table to its figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.recipes import Recipe
    from pbprompt.runs.store import RunStore
    from pbprompt.sweep.executor import Executor

EXECUTORS = ("local", "ray", "slurm")
FORMATS = ("terminal", "markdown", "csv", "latex")


def reproduce(
    tables: list[str] = typer.Argument(None, help="Recipes by name, or YAML files; none: list them."),
    dataset: list[str] = typer.Option([], help="Only these datasets, or your own in their place."),
    shots: str = typer.Option("", help="Only these shots: 1,4,16."),
    seeds: str = typer.Option("", help="Only these seeds: 1,2,3."),
    overrides: list[str] = typer.Option([], "--set", help="A setting of every method as key=value."),
    runs: Path = typer.Option(Path("runs"), help="The folder of results; finished runs are not run again."),
    root: Path | None = typer.Option(None, help="Where the benchmarks are (or $PBPROMPT_DATA)."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    executor: str = typer.Option("local", help="What spreads the runs: local, ray or slurm."),
    jobs: int | None = typer.Option(None, min=1, help="Runs at a time (default: one a GPU, or up to 4)."),
    gpus_per_run: float | None = typer.Option(None, min=0, help="Ray and Slurm; a fraction shares a GPU."),
    ray_address: str | None = typer.Option(None, help="A running cluster (default: one is started here)."),
    style: str = typer.Option("terminal", "--format", help="terminal, markdown, csv or latex."),
    report: Path | None = typer.Option(None, help="Also write a page of tables and figures to this folder."),
) -> None:
    """Run what is missing of one or more tables and print them, published figures beside ours.

    [bold]pbprompt reproduce sample-few-shot sample-base-to-new --report page/[/bold]

    [bold]pbprompt reproduce few-shot-vit --root DATA --dataset dtd --shots 1,16 --device cuda[/bold]

    Ctrl-C keeps every finished run: the same command goes on from there.
    """
    if not tables:
        _list_recipes()
        return
    _check(executor, style, ray_address, gpus_per_run)
    import contextlib

    from pbprompt.recipes import load_recipe
    from pbprompt.runs.store import RunStore
    from pbprompt.sweep import sweep

    recipes = [
        _narrowed(load_recipe(name), dataset, _numbers("shots", shots), _numbers("seeds", seeds), overrides)
        for name in tables
    ]
    store = RunStore(runs)
    failed: list[str] = []
    gpus = gpus_per_run if gpus_per_run is not None else float(device.startswith("cuda"))
    with contextlib.closing(_executor(executor, jobs, device, gpus, ray_address, runs)) as engine:
        for backbone in dict.fromkeys(recipe.backbone for recipe in recipes):
            wanted = [run for recipe in recipes if recipe.backbone == backbone for _, run in recipe.expand()]
            outcome = sweep(wanted, backbone=backbone, root=root, store=store, executor=engine, device=device)
            failed += outcome.failed
    for recipe in recipes:
        _print_table(recipe, store, style)
    if report:
        from pbprompt.report.page import write_page

        write_page(store, report / "index.html", recipes, figures=report / "figures")
        typer.echo(f"wrote {report / 'index.html'}", err=True)
    if failed:
        _print_failures(store, failed)
        raise typer.Exit(1)


def _list_recipes() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from pbprompt.recipes import load_recipe, recipe_names

    table = Table("table", "runs", "backbone", "what it is", box=box.SIMPLE)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(name, str(len(recipe.expand())), recipe.backbone, recipe.title)
    Console().print(table)


def _check(executor: str, style: str, ray_address: str | None, gpus_per_run: float | None) -> None:
    for option, value, known in (("executor", executor, EXECUTORS), ("format", style, FORMATS)):
        if value not in known:
            raise InputError(f"--{option} {value}: choose one of {', '.join(known)}")
    if ray_address and executor != "ray":
        raise InputError("--ray-address: only with --executor ray")
    if gpus_per_run is not None and executor == "local":
        raise InputError("--gpus-per-run: only with --executor ray or slurm; here --jobs shares the GPUs")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """ "1,4,16" -> (1, 4, 16)"""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise InputError(f"--{option} {text}: {wrong[0]!r} is not a number: write them as 1,2,3")
    return tuple(map(int, parts))


def _narrowed(
    recipe: "Recipe",
    datasets: Sequence[str],
    shots: tuple[int, ...],
    seeds: tuple[int, ...],
    overrides: Sequence[str],
) -> "Recipe":
    """The part of a table that is asked for, as a table of its own."""
    from dataclasses import replace

    return replace(
        recipe,
        datasets=tuple(datasets) or recipe.datasets,
        shots=shots or recipe.shots,
        seeds=seeds or recipe.seeds,
        rows=tuple(row.changed(overrides) for row in recipe.rows),
    )


def _executor(
    name: str, jobs: int | None, device: str, gpus: float, ray_address: str | None, runs: Path
) -> "Executor":
    if name == "ray":
        from pbprompt.sweep.ray_executor import RayExecutor

        return RayExecutor(ray_address, gpus, jobs)
    if name == "slurm":
        from pbprompt.sweep.slurm import SlurmExecutor

        return SlurmExecutor(runs / "slurm", gpus, jobs)
    from pbprompt.sweep.local import LocalExecutor

    return LocalExecutor(jobs, device)


def _print_table(recipe: "Recipe", store: "RunStore", style: str) -> None:
    from rich.console import Console

    from pbprompt.report import render
    from pbprompt.report.tables import build_table

    table = build_table(recipe, store.records(), store.arrays)
    if style == "terminal":
        Console().print(render.terminal(table))
    else:
        written = {"markdown": render.markdown, "csv": render.csv_text, "latex": render.latex}
        print(written[style](table))


def _print_failures(store: "RunStore", failed: Sequence[str]) -> None:
    """One line per run; the tracebacks are in the store."""
    latest = {failure.id: failure for failure in store.failures()}
    for identity in failed:
        typer.echo(f"failed: {latest[identity].config}: {latest[identity].reason}", err=True)
    typer.echo(f"tracebacks: {store.folder / 'failures.jsonl'}; the same command tries them again", err=True)
