"""`python -m benchmarks.chaos`: attack, print the table, and fail where anything was lost or hung."""

import argparse
import time
from collections import Counter
from collections.abc import Iterator

from benchmarks.chaos import disk, inputs, kills, server
from pbprompt import markdown

COLUMNS = ("survived", "refused", "lost", "hung")
EXAMPLES = 20  # requests of each kind that are made of the schema


def main() -> int:
    """1 where anything was lost or hung."""
    parser = argparse.ArgumentParser(
        description="Attack the file layer, whole jobs, the readers and the server."
    )
    parser.add_argument("--mutations", type=int, default=700, help="of each file, of which there are 16")
    parser.add_argument("--points", type=int, default=1000, help="faults of the disk and kills together")
    parser.add_argument("--requests", type=int, default=200, help="to the server at once, good and hostile")
    parser.add_argument("--minutes", type=float, default=0, help="go on with kills and requests for so long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ends, found = time.monotonic() + 60 * options.minutes, dict[str, Counter[str]]()
    for name, counts in _attacks(options):
        found.setdefault(name, Counter()).update(counts)
    seed = options.seed
    while time.monotonic() < ends:
        seed += 1
        for name, counts in _again(seed, options):
            found.setdefault(name, Counter()).update(counts)
    rows = [
        [name, f"{counts.total():,}", *(f"{counts[column]:,}" for column in COLUMNS)]
        for name, counts in found.items()
    ]
    print(markdown.table(["what", "tried", *COLUMNS], rows, figures=True))
    return 1 if any(counts["lost"] + counts["hung"] for counts in found.values()) else 0


def _attacks(options: argparse.Namespace) -> Iterator[tuple[str, Counter[str]]]:
    faults = 0
    for name, counts in disk.attack():
        faults += counts.total()
        yield name, counts
    yield from kills.attack(max(0, options.points - faults), options.seed)
    yield from inputs.attack(options.mutations, options.seed)
    yield from server.attack(options.requests, EXAMPLES, options.seed)


def _again(seed: int, options: argparse.Namespace) -> Iterator[tuple[str, Counter[str]]]:
    """What has another outcome at another moment."""
    yield from server.attack(options.requests, EXAMPLES, seed)
    yield from kills.attack(100, seed)


if __name__ == "__main__":
    raise SystemExit(main())
