"""The benchmarks pbprompt knows."""

from pbprompt.data.catalog import few_shot, grocery, imagenet, pacs, sample
from pbprompt.data.catalog.benchmark import Benchmark
from pbprompt.errors import InputError
from pbprompt.suggest import suggest

_ENTRIES = (  # in the order of the field's tables
    imagenet.IMAGENET,
    *few_shot.BENCHMARKS,
    *imagenet.RELATIVES,
    pacs.BENCHMARK,
    grocery.BENCHMARK,
    sample.BENCHMARK,
)


def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by its name."""
    return {entry.name: entry for entry in _ENTRIES}


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
