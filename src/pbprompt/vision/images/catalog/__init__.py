"""The benchmarks pbprompt knows: `benchmarks.yaml` is the table of them."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from pbprompt.errors import InputError, suggest
from pbprompt.vision.images.catalog.benchmark import Benchmark, SourceFile
from pbprompt.vision.images.catalog.readers import READERS

SAMPLE = Path(__file__).resolve().parents[1] / "sample"  # the folder of the embedded one


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by its name."""
    rows = yaml.safe_load(
        (files("pbprompt.vision.images.catalog") / "benchmarks.yaml").read_text(encoding="utf-8")
    )
    return {row["name"]: _benchmark(row) for row in rows}


def _benchmark(row: dict[str, Any]) -> Benchmark:
    lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    read = READERS[row.pop("reader")]
    domains = tuple(row.get("domains", {}).items())
    parts = tuple(SourceFile(**part) for part in row.get("parts", ()))
    return Benchmark(**{**row, **lists, "domains": domains, "parts": parts, "read": read})


def lookup(name: str) -> Benchmark | None:
    """The benchmark of that name, title or alias, whatever its case, hyphens and underscores."""
    for entry in benchmarks().values():
        if _plain(name) in map(_plain, (entry.name, entry.title, *entry.aliases)):
            return entry
    return None


def find(name: str) -> Benchmark:
    """As `lookup`; an unknown name is an error with a suggestion."""
    entry = lookup(name)
    if entry is None:
        raise InputError(f"no benchmark is named {name!r}: {suggest(name, benchmarks())}")
    return entry


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
