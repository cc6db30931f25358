"""Subsets of OxfordPets and Caltech101 like those that round 12 and the three presets were run on.

    python -m benchmarks.readings.subsets --root DATA

writes `pets.json` and `caltech-40.json`, split files of the first photographs of every class as the published
split lists them, beside the datasets' images, and prints their content hashes. The files of those runs were
written by no command that was kept, and theirs are other photographs: the hashes of their records are
bcc55eabe66a and a2f6adfd4c8f. Then: `pbprompt research reproduce benchmarks/readings/round-12.yaml
--root DATA --dataset DATA/oxford_pets/pets.json --dataset DATA/caltech-101/caltech-40.json`.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from pbprompt.files import write_text
from pbprompt.vision.images.items import SPLITS, Dataset
from pbprompt.vision.images.sources import open_dataset

FILES = {"oxford_pets": ("pets", 37), "caltech101": ("caltech-40", 40)}  # and the first classes of each
PHOTOGRAPHS = {"train": 28, "val": 10, "test": 22}  # of a class, at most


def subset(whole: Dataset, classes: int) -> dict[str, list[tuple[str, int, str]]]:
    """A split file: the first photographs of the first classes."""
    parts: dict[str, list[tuple[str, int, str]]] = {}
    for split in SPLITS:
        counts: Counter[int] = Counter()
        parts[split] = []
        for item in whole.split(split):
            counts[item.label] += 1
            if item.label < classes and counts[item.label] <= PHOTOGRAPHS[split]:
                parts[split].append((item.path, item.label, whole.classes[item.label]))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, help="where the benchmarks are (or $PBPROMPT_DATA)")
    options = parser.parse_args()
    for name, (file, classes) in FILES.items():
        whole = open_dataset(name, options.root)
        path = whole.root / f"{file}.json"
        write_text(path, json.dumps(subset(whole, classes), ensure_ascii=False) + "\n")
        print(f"{path}: {open_dataset(str(path)).content_hash[:12]}")


if __name__ == "__main__":
    main()
