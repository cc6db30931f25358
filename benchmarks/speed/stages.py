"""Part `stages`: where the processor time of `pbprompt fit` goes, from cached features.

The folder has files that are no pictures, whose features are in the cache already: classes are directions of
chance, images lie about them. Each run is a process of its own with one thread; the one that took least
counts. Processor time, since it hardly depends on what else the machine does. Then two by the clock, the
least of several too: the plain command with as many threads as it takes by itself, and `PromptClassifier.fit`
of the folder in one process, after a first.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.setups import Options
from pbprompt.files import file_hash
from pbprompt.research.costs import class_names
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.towers.loading.load import load_backbone

CLASSES, RUNS = 100, 5
SPLITS = {"train": 16, "val": 16, "test": 24}  # images of a class
SHARD = 512
JPEG = b"\xff\xd8\xff\xe0"  # how one begins
NOISE = 4.0  # of an image about its class, beside 1


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A row a stage, and one of all."""
    classes, runs = (3, 1) if options.quick else (CLASSES, RUNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_problem(folder, classes)
        found = [one_fit(folder, number) for number in range(runs + 1)][1:]  # the first remembers hashes
        by_clock = {
            "all, by the clock": min(clocked(folder, number) for number in range(runs)),
            "a second fit in Python, by the clock": second_fit(folder, runs),
        }
    best = min(found, key=lambda stages: stages["all"])
    problem = {"classes": classes, "images": classes * sum(SPLITS.values())}
    for stage, seconds in best.items():
        yield {"stage": stage, "seconds": seconds, "share": seconds / best["all"], **problem}
    for stage, seconds in by_clock.items():
        yield {"stage": stage, "seconds": seconds, **problem}


def write_problem(folder: Path, classes: int) -> None:
    """Files of each split and class below `photos`, and their features in the cache."""
    bank = FeatureCache(load_backbone("lite"), cache=folder / "cache" / "features", progress=False)
    side, width = bank.backbone.grid, bank.backbone.embed_dim
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=generator)
    names, files, rows = class_names(bank.backbone.tokenizer, classes), [], []
    before = time.time() - 60  # hashes of files that may still change are not remembered
    for split, count in SPLITS.items():
        for label, name in enumerate(names):
            (folder / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                files.append(folder / "photos" / split / name / f"{number}.jpg")
                files[-1].write_bytes(JPEG + f"{split} {label} {number}".encode())
                os.utime(files[-1], (before, before))
                rows.append(label)
    features = centres[rows] + NOISE * torch.randn(len(rows), width, generator=generator)
    keys, store = [file_hash(file) or "" for file in files], bank._store(bank.backbone.preprocess.identity)
    for at in range(0, len(keys), SHARD):
        some = features[at : at + SHARD]
        patches = torch.zeros(len(some), side[0] * side[1], width, dtype=torch.float16)
        store.write(keys[at : at + SHARD], some, patches)


def one_fit(folder: Path, number: int) -> dict[str, float]:
    """Seconds by stage, of a process to its end."""
    command = [sys.executable, "-m", "benchmarks.speed.staged_fit", str(folder / "photos")]
    before = os.times()
    told = _run(folder, [*command, "--out", str(folder / f"model-{number}")], {"OMP_NUM_THREADS": "1"})
    total = sum(os.times()[2:4]) - sum(before[2:4])
    stages: dict[str, float] = json.loads(told.splitlines()[-1])
    return {**stages, "all else": total - sum(stages.values()), "all": total}


def clocked(folder: Path, number: int) -> float:
    """Seconds of the plain command, from its start to its end."""
    command = [sys.executable, "-m", "pbprompt", "fit", str(folder / "photos")]
    started = time.perf_counter()
    _run(folder, [*command, "--out", str(folder / f"clocked-{number}")], {})
    return time.perf_counter() - started


def second_fit(folder: Path, runs: int) -> float:
    """Seconds of a fit in a process that has done one."""
    code = (
        "import sys, time; from pbprompt import PromptClassifier\n"
        "for _ in range(int(sys.argv[2]) + 1):\n"
        "    started = time.perf_counter(); PromptClassifier().fit(sys.argv[1])\n"
        "    print(time.perf_counter() - started)"
    )
    told = _run(folder, [sys.executable, "-c", code, str(folder / "photos"), str(runs)], {})
    return min(map(float, told.splitlines()[1:]))


def _run(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What it prints."""
    variables = os.environ | {"PBPROMPT_CACHE": str(folder / "cache"), **environment}
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    )
    return done.stdout
