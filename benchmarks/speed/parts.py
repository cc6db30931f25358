"""The parts of the benchmark: run one, stamp it, keep it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed import (
    evidence_growth,
    evidence_pass,
    fits,
    growth,
    imagenet,
    many_classes,
    prediction,
    stages,
    steps,
)
from benchmarks.speed.measuring import take_device
from benchmarks.speed.rates import stamp
from benchmarks.speed.results import add_part
from benchmarks.speed.setups import Options

PARTS: dict[str, Callable[[Options], Iterator[dict[str, Any]]]] = {
    "steps": steps.run,
    "fit": fits.run,
    "predict": prediction.run,
    "imagenet": imagenet.run,
    "classes": many_classes.run,
    "growth": growth.run,
    "stream": evidence_pass.run,
    "conjugate": evidence_growth.run,
    "stages": stages.run,
}


def run_part(
    name: str, options: Options, out: Path | None, saw: Callable[[dict[str, Any]], None] = lambda row: None
) -> dict[str, Any]:
    """Measure one part; after every row what there is goes to the file, so that an end loses only the next.

    `saw` is called with each row.
    """
    take_device(options.device)
    part = stamp(options.device, options.quick) | {"seconds": 0.0, "complete": False, "rows": []}
    started = time.perf_counter()
    for row in PARTS[name](options):
        part["rows"].append(row)
        part["seconds"] = time.perf_counter() - started
        if out is not None:
            add_part(out, name, part)
        saw(row)
    part["complete"] = True
    if out is not None:
        add_part(out, name, part)
    return part
