"""`pbprompt research reproduce`: from the name of a table to its figures."""

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from pbprompt.apps.cli.options import DEVICE, RAY_ADDRESS, ROOT, refuse, with_options
from pbprompt.apps.cli.output import note, print_table
from pbprompt.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pbprompt.executors import Executor
    from pbprompt.research.costs import Cost
    from pbprompt.research.pictures import PictureRecipe
    from pbprompt.research.recipes import Recipe
    from pbprompt.research.runs import RunStore

COST = "computation-cost"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Which tables, how much of them, and what runs them."""

    tables: list[str] = typer.Argument(None, help="Recipes by name, or YAML files; none: list them.")
    dataset: list[str] = typer.Option([], help="Only these datasets, or your own in their place.")
    shots: str = typer.Option("", help="Only these shots: 1,4,16.")
    seeds: str = typer.Option("", help="Only these seeds: 1,2,3.")
    overrides: list[str] = typer.Option([], "--set", help="A setting of every method as key=value.")
    runs: Path = typer.Option(Path("runs"), help="The folder of results; finished runs are not run again.")
    root: Path | None = ROOT
    device: str = DEVICE
    precision: str = typer.Option(
        "", help="Of the towers, in every row: float32, bfloat16 or float16 (default: as each row's authors)."
    )
    executor: Literal["local", "ray", "slurm"] = typer.Option(
        "local", help="What spreads the runs: local, ray or slurm."
    )
    jobs: int | None = typer.Option(None, min=1, help="Runs at a time (default: one per GPU, or up to 4).")
    gpus_per_run: float | None = typer.Option(None, min=0, help="Ray and Slurm; a fraction shares a GPU.")
    ray_address: str | None = RAY_ADDRESS
    style: Literal["terminal", "markdown", "csv", "latex"] = typer.Option(
        "terminal", "--format", help="terminal, markdown, csv or latex."
    )
    report: Path | None = typer.Option(None, help="Also write a page of tables and figures to this folder.")
    dry_run: bool = typer.Option(False, help="Only say what it costs: runs, steps and hours, by row.")
    captions: Path | None = typer.Option(None, help="Captions for a picture of them, one per line.")

    def __post_init__(self) -> None:
        if self.executor != "ray":
            refuse(self, "ray_address", "is for --executor ray")
        if self.executor == "local":
            refuse(self, "gpus_per_run", "is for --executor ray or slurm; here --jobs shares the GPUs")

    def numbers(self, option: Literal["shots", "seeds"]) -> tuple[int, ...]:
        """ "1,4,16" -> (1, 4, 16)"""
        text = getattr(self, option)
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if wrong := [part for part in parts if not part.isdecimal()]:
            raise InputError(f"--{option} {text}: {wrong[0]!r} is not a number: write them as 1,2,3")
        return tuple(map(int, parts))


@with_options(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> None:
    """Run what is missing of one or more tables and print them, published figures beside ours.

    [bold]pbprompt research reproduce sample-few-shot sample-base-to-new --report page/[/bold]

    [bold]pbprompt research reproduce few-shot-vit --root DATA --dataset dtd --shots 1,16 --device cuda[/bold]

    [bold]pbprompt research reproduce few-shot-vit --dry-run[/bold]

    [bold]pbprompt research reproduce captions --dataset photos/ --captions captions.txt[/bold]

    Pictures are written to the folder of results, each with a JSON file of what was drawn.
    Ctrl-C keeps every finished run: the same command goes on from there.
    """
    from pbprompt import distributed
    from pbprompt.research.pictures import find_picture, picture_names
    from pbprompt.research.recipes import load_recipe, recipe_names
    from pbprompt.research.runs import RunStore
    from pbprompt.research.sweep import sweep

    options = replace(options, device=distributed.pick(options.device))
    pictures = {name: picture for name in options.tables or () if (picture := find_picture(name))}
    if not options.tables:
        if options.dry_run:
            _print_costs([_precise(load_recipe(name), options) for name in recipe_names()], options)
        else:
            _list_recipes()
        return
    if options.captions is not None and not pictures:
        raise InputError("--captions: only with a picture, such as `captions`")
    measured = [name for name in options.tables if name != COST and name not in pictures]
    part = (options.dataset, options.numbers("shots"), options.numbers("seeds"), options.overrides)
    others = [*picture_names(), COST]
    recipes = [_precise(load_recipe(name, others).narrowed(*part), options) for name in measured]
    if options.dry_run:
        _print_costs([*recipes, *(_wanted(picture, options).fits for picture in pictures.values())], options)
        if COST in options.tables:
            print(f"{COST}: trains nothing: four methods predict some images four times, in minutes")
        return
    if COST in options.tables:
        _print_computation(options)
    for picture in pictures.values():
        _draw(picture, options)
    if not recipes:
        return
    store = RunStore(options.runs)
    failed: list[str] = []
    with contextlib.closing(_executor(options)) as engine:
        for backbone in dict.fromkeys(recipe.backbone for recipe in recipes):
            wanted = [run for recipe in recipes if recipe.backbone == backbone for _, run in recipe.expand()]
            outcome = sweep(
                wanted,
                backbone=backbone,
                root=options.root,
                store=store,
                executor=engine,
                device=options.device,
            )
            failed += outcome.failed
            note(f"{len(outcome.skipped):,} runs reused, {len(outcome.done):,} new")
    for recipe in recipes:
        _print_results(recipe, store, options.style)
    if options.report:
        from pbprompt.research.report.page import write_page

        write_page(store, options.report / "index.html", recipes, figures=options.report / "figures")
        note(f"wrote {options.report / 'index.html'}")
    if failed:
        latest = {failure.id: failure for failure in store.failures()}
        for identity in failed:
            note(f"failed: {latest[identity].config}: {latest[identity].reason}")
        note(f"tracebacks: {store.folder / 'failures.jsonl'}; the same command tries them again")
        raise typer.Exit(1)


def _precise(recipe: "Recipe", options: ReproduceOptions) -> "Recipe":
    """With towers as precise as asked for; else as each row has them, but on a CPU, where half is slower."""
    from pbprompt.vision.towers.rounding import precision_of

    if options.precision:
        precision_of(options.precision, options.device)
        return recipe.narrowed(precision=options.precision)
    half = sum(row.precision != "float32" for row in recipe.rows)
    if half and options.device == "cpu":
        note(f"{recipe.name}: on a CPU {half} rows of half precision run in float32")
        return recipe.narrowed(precision="float32")
    return recipe


def _list_recipes() -> None:
    from pbprompt.research.pictures import find_picture, picture_names
    from pbprompt.research.recipes import load_recipe, recipe_names

    rows: list[tuple[object, ...]] = []
    for recipe in map(load_recipe, recipe_names()):
        rows.append((recipe.name, len(recipe.expand()), recipe.backbone, recipe.title))
    for picture in filter(None, map(find_picture, picture_names())):
        rows.append((picture.name, "picture", picture.backbone, picture.title))
    rows.append((COST, "timing", "ViT-B/16", "Parameters, and images per second on this machine"))
    print_table(("table", "runs", "backbone", "what it is"), rows)


def _print_costs(recipes: "Sequence[Recipe]", options: ReproduceOptions) -> None:
    """What tables cost on this machine, by a few steps of each row: a line for every table or, of those that
    are named, for every row. Equal rows are timed once; the steps are exact."""
    from pbprompt.research.costs import CLASSES, SPREAD_AT, DryRun

    def line(label: str, costs: "Sequence[Cost]") -> tuple[str, str, str, float]:
        runs, steps = sum(cost.runs for cost in costs), sum(cost.steps for cost in costs)
        return label, f"{runs:,}", f"{steps:,}", sum(cost.hours or 0 for cost in costs)

    def shown(hours: float | None) -> str:
        return "not timed" if hours is None else f"{hours:,.{0 if hours >= 100 else 1}f}"

    dry = {name: DryRun(name, options.root, options.device) for name in {one.backbone for one in recipes}}
    whole = []
    for recipe in recipes:
        costs = dry[recipe.backbone].cost(recipe)
        missing = [cost.label for cost in costs if cost.hours is None]
        if not options.tables:
            *counts, hours = line(recipe.name, costs)
            without = f" without {', '.join(missing)}" if missing else ""
            rounded = f"{float(f'{hours:.2g}'):,.{0 if hours >= 10 else 2}f}"
            whole.append((*counts, f"{rounded}{without}"))
            continue
        rows = []
        for cost in costs:
            one = line(cost.label, [cost])[:3]
            rows.append((*one, shown(cost.hours), f"{100 * cost.spread:.0f} %", shown(cost.most)))
        *counts, hours = line("all", costs)
        print(f"{recipe.name}: {recipe.title} ({recipe.backbone}, on {options.device})")
        print_table(
            ("row", "runs", "steps", "hours", "±", "longest run"), [*rows, (*counts, shown(hours), "", "")]
        )
        few, more = CLASSES
        print(
            f"hours of one process, by medians of steps timed here with {few} and {more} classes; ±: half "
            f"the distance of their quartiles, at {SPREAD_AT} classes; tests come on top"
        )
        if missing:
            print("not timed: its steps see more than features, or took no longer with more classes")
        if dry[recipe.backbone].reckoned:
            print("data not found here: a draw is taken to have all its shots of every class")
    if whole:
        _print_rows(("table", "runs", "steps", "hours of one process"), whole, options)


def _print_rows(head: "Sequence[str]", rows: "Sequence[Sequence[str]]", options: ReproduceOptions) -> None:
    from pbprompt.markdown import table

    if options.style == "terminal":
        print_table(head, rows)
    else:
        print(table(head, rows, figures=True))


def _print_computation(options: ReproduceOptions) -> None:
    """The paper's table of computation cost, measured here."""
    from pbprompt.research.costs import computation_cost

    rows = []
    for one in computation_cost(device=options.device):
        counts = f"{one.parameters:,}", f"{one.published_parameters:,}"
        rows.append(
            (one.method, *counts, f"{one.images_per_second:.1f}", f"{one.published_images_per_second:.0f}")
        )
    if options.style == "terminal":
        print("Computation cost (ViT-B/16)")
    _print_rows(("method", "parameters", "published", "images/s", "published"), rows, options)
    if options.style == "terminal":
        print("101 classes, 10 sampled prompts; the paper's speeds are of another machine")


def _draw(picture: "PictureRecipe", options: ReproduceOptions) -> None:
    """Fit and draw a picture of what is asked for, and write it beside what was drawn."""
    from pbprompt.apps.explain.drawing import save_picture
    from pbprompt.apps.explain.prompts import read_captions
    from pbprompt.files import write_text
    from pbprompt.research.pictures import make_picture
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.towers.loading.load import load_backbone

    backbone = load_backbone(picture.backbone, device=options.device)
    picture = _wanted(picture, options)
    if options.captions:
        picture = replace(picture, captions=tuple(read_captions(options.captions, backbone.tokenizer)))
    if picture.picture == "captions" and not picture.captions:
        raise InputError(f"{picture.name}: give --captions, a text file with one caption per line")
    drawn, facts = make_picture(picture, FeatureCache(backbone), options.root)
    image, text = (options.runs / f"{picture.name}.{suffix}" for suffix in ("png", "json"))
    save_picture(drawn, image)
    write_text(text, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    note(f"wrote {image}\nwrote {text}")


def _wanted(picture: "PictureRecipe", options: ReproduceOptions) -> "PictureRecipe":
    """The picture of the datasets, shots and seed that the options name."""
    shots, seeds = options.numbers("shots"), options.numbers("seeds")
    for option, values in (("shots", shots), ("seeds", seeds)):
        if len(values) > 1:
            raise InputError(f"--{option}: a picture is of one model: give one number")
    return replace(
        picture,
        datasets=tuple(options.dataset) or picture.datasets,
        shots=shots[0] if shots else picture.shots,
        seed=seeds[0] if seeds else picture.seed,
        overrides=(*picture.overrides, *options.overrides),
    )


def _executor(options: ReproduceOptions) -> "Executor":
    from pbprompt.executors import LocalExecutor, RayExecutor, SlurmExecutor

    gpus = options.gpus_per_run
    if gpus is None:
        gpus = float(options.device.startswith("cuda"))
    if options.executor == "ray":
        return RayExecutor(options.ray_address, gpus, options.jobs)
    if options.executor == "slurm":
        return SlurmExecutor(options.runs / "slurm", gpus, options.jobs)
    return LocalExecutor(options.jobs, options.device)


def _print_results(recipe: "Recipe", store: "RunStore", style: str) -> None:
    from rich.console import Console

    from pbprompt.research.provenance import is_current
    from pbprompt.research.report import render
    from pbprompt.research.report.tables import build_table

    wanted = {config for _, config in recipe.expand()}
    records = [record for record in store.records() if record.config in wanted]
    current = [record for record in records if is_current(record)]
    if others := len(records) - len(current):
        note(f"{others:,} runs of other code are left out; `pbprompt research runs` lists them")
    table = build_table(recipe, current, store.arrays)
    if style == "terminal":
        Console().print(render.terminal(table))
    else:
        written = {"markdown": render.markdown, "csv": render.csv_text, "latex": render.latex}
        print(written[style](table))
