"""The four sets of the study that nothing was chosen on, as class folders, from clones of their repositories.

    git clone https://github.com/emanhamed/Houses-dataset CLONES/Houses-dataset          (and so on)
    python -m benchmarks.study.untouched CLONES DATA

A clone may be bare. Of each class at most `MOST` photographs are taken, for training and testing together,
those whose paths have the smallest hashes, so that anyone takes the same. None belongs to this repository.
"""

import argparse
import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MOST = 120
IMAGES = (".jpg", ".jpeg", ".png")


class Source(NamedTuple):
    """A repository, and the class of each of its files; None: not an image of the set."""

    repository: str
    label: Callable[[PurePosixPath], str | None]


def _room(path: PurePosixPath) -> str | None:
    return path.stem.partition("_")[2].replace("frontal", "front of a house") or None


def _below(folder: str) -> Callable[[PurePosixPath], str | None]:
    return lambda path: path.parts[-2].replace("_", " ") if path.parts[0] == folder else None


def _fruit(path: PurePosixPath) -> str | None:
    return path.parts[-2] if path.parts[0] in ("Training", "Test") else None


SOURCES = {
    "rooms": Source("Houses-dataset", _room),
    "hands": Source("Sign-Language-Digits-Dataset", _below("Dataset")),
    "masks": Source("Face-Mask-Detection", _below("dataset")),
    "fruits": Source("Fruit-Images-Dataset", _fruit),
}


def taken(paths: list[str], source: Source) -> dict[str, str]:
    """Where each image that is taken goes, by its path in the repository."""
    by_class: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        label = source.label(PurePosixPath(path)) if path.lower().endswith(IMAGES) else None
        if label:
            by_class[label].append(path)
    few = {
        label: sorted(all_of_it, key=lambda path: hashlib.sha256(path.encode()).hexdigest())[:MOST]
        for label, all_of_it in by_class.items()
    }
    return {
        path: f"{label}/{place:03d}{PurePosixPath(path).suffix.lower()}"
        for label, chosen in few.items()
        for place, path in enumerate(chosen)
    }


def main() -> None:
    """Write the sets below DATA/untouched."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("clones", type=Path, help="folder of the four clones, bare or not")
    parser.add_argument("data", type=Path, help="folder of the datasets")
    options = parser.parse_args()
    for name, source in SOURCES.items():
        git = ["git", "-C", str(options.clones / source.repository)]
        tree = [*git, "ls-tree", "-r", "-z", "--name-only", "HEAD"]
        listed = subprocess.run(tree, capture_output=True, check=True).stdout
        wanted = taken(listed.decode().split("\0"), source)
        for path, place in wanted.items():
            content = subprocess.run([*git, "show", f"HEAD:{path}"], capture_output=True, check=True).stdout
            target = options.data / "untouched" / name / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        print(f"{name}: {len(wanted):,} images")


if __name__ == "__main__":
    main()
