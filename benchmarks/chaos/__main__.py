"""`python -m benchmarks.chaos`: attack, print the table, and fail where anything was lost or hung."""

import argparse
import itertools

from benchmarks.chaos import disk, inputs
from pbprompt import markdown

COLUMNS = ("survived", "refused", "lost", "hung")


def main() -> int:
    """1 where anything was lost or hung."""
    parser = argparse.ArgumentParser(description="Attack the file layer and the readers.")
    parser.add_argument("--mutations", type=int, default=700, help="of each file, of which there are 16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows, bad = [], 0
    cases = itertools.chain(disk.attack(), inputs.attack(options.mutations, options.seed))
    for name, counts in cases:
        rows.append([name, f"{counts.total():,}", *(f"{counts[column]:,}" for column in COLUMNS)])
        bad += counts["lost"] + counts["hung"]
    print(markdown.table(["what", "tried", *COLUMNS], rows, figures=True))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
