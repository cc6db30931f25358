"""What a batch costs beside its tower: decoding alone, the tower alone, and `predict --out` as a whole.

    python -m benchmarks.batch
    python -m benchmarks.batch --images 60 --turns 1 --backbone ViT-B/16 --json out.json
    python -m benchmarks.batch --device cuda --json out.json

JPEG files of 500 × 375 pixels and about 100 KB (`benchmarks/speed/pictures.py`); backbones other than `lite`
have random weights of the real sizes, on a GPU in float16; `lite` is in float32. On a CPU decoding and the
whole are measured with `--fast-resize` too. All are measured in turns, several times, in one run, after a
short run of each that does not count; a rate beside another one of the same turn is what counts, since other
work on the machine slows all of them. The bound is the smaller of the rates of the tower and of decoding, by
as many processes as the whole has: beside a GPU one a processor. Next to the rates stands the processor time
of each, and of the decoding processes in it, which other work disturbs less. On a GPU the tower is measured
in larger batches too. Then the ways to decode (`benchmarks/ways_to_decode.py`).
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import ways_to_decode
from benchmarks.speed.pictures import QUALITY, picture
from benchmarks.speed.setups import make_backbone
from pbprompt.apps.batch import job as batch_job
from pbprompt.apps.batch.output import Output
from pbprompt.model.tuned import TunedModel
from pbprompt.research.provenance import commit, machine
from pbprompt.vision.features.encode import decoder_for, default_batch, encode_records
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Record, Stream
from pbprompt.vision.towers.backbone import Backbone

TURNS = 3
IMAGES = {"cpu": 600, "cuda": 20_000}  # a turn takes less than a minute
BACKBONES = {"cpu": ["lite"], "cuda": ["lite", "ViT-B/16"]}
WARM_UP = {"cpu": 32, "cuda": 1024}  # images that do not count
LARGE_BATCH = 256
FAST = "--fast-resize"
PICTURES = 16  # distinct ones; the rest are links to them, which take as long to decode


class Cost(NamedTuple):
    """Images a second, and milliseconds of processors an image: of all, and of the decoding processes."""

    rate: float
    processor: float
    decoders: float


def timed(images: int, work: Callable[[], object]) -> Cost:
    """With the processor time of the processes that ended meanwhile."""
    wall, before = time.perf_counter(), os.times()
    work()
    wall, after = time.perf_counter() - wall, os.times()
    own, others = (sum(after[at : at + 2]) - sum(before[at : at + 2]) for at in (0, 2))
    return Cost(images / wall, 1000 * (own + others) / images, 1000 * others / images)


def decode(backbone: Backbone, files: Sequence[Path]) -> None:
    """Files to squares, as the whole does it."""
    records = list(Stream(list(files)).records())
    look, size = backbone.preprocess.cropper, default_batch(backbone.device)
    with contextlib.closing(decoder_for(backbone)) as decoder:
        batches = ((at, records[at : at + size]) for at in range(0, len(records), size))
        for _ in decoder.decoded(batches, look):
            pass


class _Ready(Decoder):
    """Has the same square for every image, at once, and no processes."""

    def __init__(self, size: int) -> None:
        super().__init__(1)
        self._square = np.asarray(picture(0).resize((size, size)))

    def decode(self, records: Sequence[Any], look: Any) -> list[Any]:
        return [self._square] * len(records)


def tower(backbone: Backbone, images: int, size: int) -> None:
    """The tower on squares that need not be decoded, by the same threads, in batches of this size."""
    batches = ((at, [Record("", b"")] * min(size, images - at)) for at in range(0, images, size))
    for _ in encode_records(backbone, batches, _Ready(backbone.preprocess.size)):
        pass


def whole(model: TunedModel, folder: Path, out: Path) -> None:
    """From the folder to one file, without the cache."""
    job = batch_job.BatchJob(model.backbone, model.predict, Stream([folder]), {"model": "benchmark"})
    output = Output(str(out))
    with output.opened(job.identity(output.suffix)):
        batch_job.run(job, output, batch_job.here, progress=False)
    if output.failures:
        raise RuntimeError(f"{output.failures} images were not answered: see {output.failed_path}")


def measure(model: TunedModel, folder: Path) -> dict[str, Cost]:
    """Each part once, one after another."""
    files, backbone = sorted(folder.iterdir()), model.backbone
    images, size = len(files), default_batch(backbone.device)
    work: dict[str, Callable[[], object]] = {
        "decoding": partial(decode, backbone, files),
        "tower": partial(tower, backbone, images, size),
    }
    if backbone.device.type == "cuda":
        work[f"tower, {LARGE_BATCH} at once"] = partial(tower, backbone, images, LARGE_BATCH)
    else:
        work[f"decoding, {FAST}"] = work["decoding"]
    with tempfile.TemporaryDirectory() as place:
        work["whole"] = partial(whole, model, folder, Path(place) / "answers.jsonl")
        if backbone.device.type == "cpu":
            work[f"whole, {FAST}"] = partial(whole, model, folder, Path(place) / "fast.jsonl")
        costs = {}
        for part, one in work.items():
            backbone.preprocess = replace(backbone.preprocess, fast=part.endswith(FAST))
            costs[part] = timed(images, one)
        return costs


def medians(turns: Sequence[dict[str, Cost]]) -> dict[str, dict[str, float]]:
    """Of each part over the turns: its costs, and its rate beside the tower's and the bound of its turn."""
    found = {}
    for part in turns[0]:
        rows = [
            {
                **turn[part]._asdict(),
                "beside_tower": turn[part].rate / turn["tower"].rate,
                "beside_bound": turn[part].rate / min(turn["tower"].rate, turn["decoding"].rate),
            }
            for turn in turns
        ]
        found[part] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return found


def pictures(count: int = PICTURES) -> list[bytes]:
    """Files that differ."""
    contents = []
    for seed in range(count):
        stream = io.BytesIO()
        picture(seed).save(stream, "JPEG", quality=QUALITY)
        contents.append(stream.getvalue())
    return contents


def fill(folder: Path, contents: Sequence[bytes], images: int) -> Path:
    """So many files in a new folder."""
    folder.mkdir()
    files = [folder / f"{number:07}.jpg" for number in range(images)]
    for number, file in enumerate(files):
        if number < len(contents):
            file.write_bytes(contents[number])
        else:
            file.hardlink_to(files[number % len(contents)])
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, help="600 on a CPU, 20,000 on a GPU")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--backbone", action="append", help="lite; on a GPU also ViT-B/16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    batch_job.CACHED_UNITS = 0
    kind = torch.device(options.device).type
    facts: dict[str, Any] = {
        "commit": commit(),
        "command": " ".join(["python -m benchmarks.batch", *sys.argv[1:]]),
        "machine": machine(options.device),
        "torch": torch.__version__,
        "images": options.images or IMAGES[kind],
        "backbones": {},
    }
    console = Console(width=110)
    contents = pictures()
    with tempfile.TemporaryDirectory() as name:
        few = fill(Path(name) / "few", contents, WARM_UP[kind])
        many = fill(Path(name) / "many", contents, facts["images"])
        for backbone in options.backbone or BACKBONES[kind]:
            dtype = "float16" if kind == "cuda" and backbone != "lite" else "float32"
            built = make_backbone(backbone, options.device, dtype)
            model = TunedModel.zero_shot(built, ["cat", "dog", "guitar"])
            measure(model, few)
            turns = [measure(model, many) for _ in range(options.turns)]
            found = medians(turns)
            facts["backbones"][backbone] = {
                "dtype": dtype,
                "medians": found,
                "turns": [{part: cost._asdict() for part, cost in turn.items()} for turn in turns],
            }
            report(console, f"{backbone}, {dtype}", found)
    by_way = ways_to_decode.measure(contents)
    facts["ways"] = {name: found._asdict() for name, found in by_way.items()}
    report_ways(console, by_way)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


def report(console: Console, name: str, found: dict[str, dict[str, float]]) -> None:
    table = Table(
        name, "images/s", "beside the tower", "beside the bound", "processors, ms an image", "decoders'",
        box=None,
    )  # fmt: skip
    for part, one in found.items():
        table.add_row(
            part, f"{one['rate']:.1f}", f"{one['beside_tower']:.3f} ×", f"{one['beside_bound']:.3f} ×",
            f"{one['processor']:.2f}", f"{one['decoders']:.2f}",
        )  # fmt: skip
    console.print(table)


def report_ways(console: Console, by_way: dict[str, ways_to_decode.Found]) -> None:
    table = Table("to a square", "processor, ms an image", "pixels off by at most", "off at all", box=None)
    for name, found in by_way.items():
        table.add_row(name, f"{found.took:.2f}", str(found.off), f"{found.share:.3%}")
    console.print(table)


if __name__ == "__main__":
    main()
