"""Compare pbprompt's few-shot draws with the published ones, item by item.

    python benchmarks/check_draws.py ROOT

ROOT holds caltech-101, oxford_pets and oxford_flowers, each with `fewshot/shot_K-seed_S.json`: the draws the
field published, as lists of {"impath", "label", "classname"} under train.data and val.data. A draw matches
where both lists are equal, order included. The exit code is 1 where any does not.
"""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pbprompt.vision.images.catalog import find
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Item

SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)


def published(path: Path, folder: str, split: str) -> list[tuple[str, int]]:
    """(path within the benchmark's folder, label) of a published draw."""
    rows = json.loads(path.read_text(encoding="utf-8"))[split]["data"]
    return [(row["impath"].split(f"/{folder}/", 1)[1], row["label"]) for row in rows]


def outcome(ours: tuple[Item, ...], theirs: list[tuple[str, int]]) -> str:
    mine = [(item.path, item.label) for item in ours]
    if mine == theirs:
        return f"{len(mine):,} equal"
    return f"{len(set(mine) & set(theirs)):,} of {len(theirs):,} in common"


def main(root: Path) -> int:
    table = Table("dataset", "shots", "seed", "train", "val")
    differ = 0
    for name in ("caltech101", "oxford_pets", "flowers102"):
        benchmark = find(name)
        dataset = benchmark.open(root)
        for shots in SHOTS:
            for seed in SEEDS:
                drawn = draw(dataset, shots, seed)
                path = dataset.root / "fewshot" / f"shot_{shots}-seed_{seed}.json"
                cells = [
                    outcome(items, published(path, benchmark.folder, split))
                    for split, items in (("train", drawn.train), ("val", drawn.val))
                ]
                differ += any(not cell.endswith("equal") for cell in cells)
                table.add_row(benchmark.title, str(shots), str(seed), *cells)
    Console().print(table)
    print(f"{len(table.rows) - differ} of {len(table.rows)} draws equal the published ones")
    return 1 if differ else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
