"""`python -m benchmarks.chaos`: attack, print the table, and fail where anything was lost or worse."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.chaos import commands, disk, inputs, kills, machines, server
from pbprompt import markdown

BAD = ("lost", "stale", "hung", "starved")
COLUMNS = ("survived", "refused", *BAD)
EXAMPLES = 20  # requests of each kind that are made of the schema
LABELLED = 3  # times that a server is killed while labels come

Found = Iterator[tuple[str, Counter[str], list[float]]]


def main() -> int:
    """1 where anything was lost, stale, hung or starved."""
    parser = argparse.ArgumentParser(
        description="Attack the file layer, whole jobs, commands, the readers and the server."
    )
    parser.add_argument("--mutations", type=int, default=700, help="of each file, of which there are 22")
    parser.add_argument("--points", type=int, default=1000, help="faults of the disk and kills together")
    parser.add_argument("--requests", type=int, default=200, help="to the server at once, good and hostile")
    parser.add_argument("--minutes", type=float, default=0, help="go on with all but the disk for so long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, seed = time.monotonic(), options.seed
    found: dict[str, Counter[str]] = {}
    took: dict[str, list[float]] = {}
    with server.started() as (process, url):
        memory = [(0.0, server.memory(process))]
        while True:
            rounds = _first(options) if seed == options.seed else _again(options, seed)
            for name, counts, seconds in rounds:
                _add(found, took, name, counts, seconds)
            for name, counts, seconds in server.attack(url, options.requests, EXAMPLES, seed):
                _add(found, took, name, counts, seconds)
                memory.append(((time.monotonic() - began) / 60, server.memory(process)))
            _add(found, took, *server.killed_decoders(process, url))
            seed += 1
            if memory[-1][0] > options.minutes:
                break
        _add(found, took, *server.end(process))
    rows = [
        [name, f"{counts.total():,}", *(f"{counts[column]:,}" for column in COLUMNS), *_times(took[name])]
        for name, counts in found.items()
    ]
    print(markdown.table(["what", "tried", *COLUMNS, "p50, s", "p99, s"], rows, figures=True))
    some = memory[:: -max(1, len(memory) // 12)][::-1]  # the last of all is the end
    shown = ", ".join(f"{size:.0f} at {minutes:.0f}" for minutes, size in [memory[0], *some])
    print(f"\nThe server's memory in MB, at minutes from its start on: {shown}.")
    return 1 if any(counts[bad] for counts in found.values() for bad in BAD) else 0


def _add(
    found: dict[str, Counter[str]],
    took: dict[str, list[float]],
    name: str,
    counts: Counter[str],
    seconds: list[float],
) -> None:
    print(f"chaos: {name}: {dict(counts)}", file=sys.stderr)
    found.setdefault(name, Counter()).update(counts)
    took.setdefault(name, []).extend(seconds)


def _times(seconds: list[float]) -> list[str]:
    return [f"{np.percentile(seconds, part):.2f}" for part in (50, 99)] if seconds else ["", ""]


def _first(options: argparse.Namespace) -> Found:
    """All there is, once."""
    faults = 0
    for name, counts in disk.attack():
        faults += counts.total()
        yield name, counts, []
    for name, counts in kills.attack(max(0, options.points - faults), options.seed):
        yield name, counts, []
    for name, counts in commands.attack(max(2, options.points // 60), options.seed, rare=True):
        yield name, counts, []
    for name, counts in machines.attack(options.seed):
        yield name, counts, []
    for name, counts in inputs.attack(options.mutations, options.seed):
        yield name, counts, []
    yield from server.labelled(LABELLED, options.seed)


def _again(options: argparse.Namespace, seed: int) -> Found:
    """What has another outcome at another moment."""
    for name, counts in kills.attack(100, seed):
        yield name, counts, []
    for name, counts in commands.attack(3, seed):
        yield name, counts, []
    yield from server.labelled(1, seed)


if __name__ == "__main__":
    raise SystemExit(main())
