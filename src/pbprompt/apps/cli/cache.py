"""`pbprompt cache`: what the stored image features take, and making room."""

from datetime import datetime

import typer
from rich.filesize import pick_unit_and_suffix

from pbprompt.apps.cli.output import print_table
from pbprompt.errors import InputError

app = typer.Typer(help="Stored image features: show, prune.", invoke_without_command=True)


@app.callback()
def show(context: typer.Context) -> None:
    """Show the folder, and for each backbone and transform the images stored, their size and last use."""
    if context.invoked_subcommand is not None:
        return
    from pbprompt.vision.features.cache import feature_folder
    from pbprompt.vision.features.store import usage

    print(f"folder {feature_folder()}")
    stored = usage(feature_folder())
    if not stored:
        print("empty")
        return
    columns = ("backbone", "precision", "transform", "entries", "size", "last use")
    rows = []
    for use in stored:
        about = {"backbone": "unknown", "precision": "", "transform": ""} | use.about
        transform, used = about["transform"].partition("(")[0], datetime.fromtimestamp(use.last_use)
        counts = f"{use.entries:,}", _size(use.bytes)
        rows.append((about["backbone"], about["precision"], transform, *counts, f"{used:%Y-%m-%d %H:%M}"))
    print_table(columns, rows, right=("entries", "size"))
    print(f"{_size(sum(use.bytes for use in stored))} in all")


@app.command()
def prune(
    max_gib: float | None = typer.Option(
        None, help="Keep at most this many GiB, the most recently used (default: 20)."
    ),
    everything: bool = typer.Option(False, "--all", help="Remove all of it."),
) -> None:
    """Remove files that killed runs left, and the least recently used features beyond a size."""
    from pbprompt.vision.features.cache import feature_folder
    from pbprompt.vision.features.store import DEFAULT_LIMIT_GIB, GIB, clear, total_bytes
    from pbprompt.vision.features.store import prune as prune_store

    if everything and max_gib is not None:
        raise InputError("--all and --max-gib both given: choose one")
    if max_gib is not None and not max_gib >= 0:  # nor NaN
        raise InputError(f"--max-gib {max_gib}: give a size of 0 or more")
    folder = feature_folder()
    limit = DEFAULT_LIMIT_GIB if max_gib is None else max_gib
    removed = clear(folder) if everything else prune_store(folder, limit * GIB)
    print(f"removed {_size(removed)}, kept {_size(total_bytes(folder))}")


def _size(count: int) -> str:
    """1,536 bytes -> "1.5 KiB"."""
    unit, name = pick_unit_and_suffix(count, ["B", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{count / unit:.{int(unit > 1)}f} {name}"
