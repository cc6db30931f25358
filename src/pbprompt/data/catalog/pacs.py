"""PACS: 7 classes in 4 styles (`<domain>/<class>/`); photographs are tuned on.

The field publishes no split of this layout, so each class of each domain is split 50/20/30 % by the seeded
rule of class folders, always with seed 1.
"""

from dataclasses import replace
from pathlib import Path

from pbprompt.data.assemble import Choices, Row, assemble
from pbprompt.data.catalog.benchmark import UNSTATED, Benchmark
from pbprompt.data.items import Dataset
from pbprompt.data.stream.folders import files_below, subfolders

DOMAINS = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}


def read(benchmark: Benchmark, folder: Path) -> Dataset:
    """Every file below the four domain folders."""
    rows = [
        Row(file.relative_to(folder).as_posix(), name, domain=domain)
        for domain in DOMAINS
        if (folder / domain).is_dir()
        for name in subfolders(folder / domain)
        for file in files_below(folder / domain / name)
    ]
    dataset = assemble(
        benchmark.name,
        folder,
        rows,
        Choices(seed=1, template=benchmark.template),
        where=str(folder),
    )
    return replace(dataset, home="photo")


BENCHMARK = Benchmark(
    name="pacs",
    title="PACS",
    folder="pacs",
    marker="photo",
    classes=7,
    counts=(4_994, 1_998, 2_999),
    licence=UNSTATED,
    source="https://domaingeneralization.github.io",
    read=read,
    domains=tuple(DOMAINS.items()),
)
