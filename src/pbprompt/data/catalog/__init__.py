"""The benchmarks pbprompt knows, one file each."""

from functools import cache
from importlib import import_module

from pbprompt.data.catalog.benchmark import Benchmark
from pbprompt.errors import InputError
from pbprompt.suggest import suggest

# In the order of the field's tables.
_MODULES = (
    "imagenet",
    "caltech101",
    "oxford_pets",
    "stanford_cars",
    "flowers102",
    "food101",
    "fgvc_aircraft",
    "sun397",
    "dtd",
    "eurosat",
    "ucf101",
    "imagenetv2",
    "imagenet_sketch",
    "imagenet_a",
    "imagenet_r",
    "pacs",
    "grocery",
    "sample",
)


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by its name."""
    entries = (import_module(f"{__name__}.{module}").BENCHMARK for module in _MODULES)
    return {entry.name: entry for entry in entries}


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
