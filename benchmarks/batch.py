"""What a batch costs beside its tower: decoding alone, the tower alone, and `predict --out` as a whole.

    python -m benchmarks.batch --images 600
    python -m benchmarks.batch --images 600 --backbone ViT-B/16 --json out.json

JPEG files of 500 × 375 pixels and about 100 KB (`benchmarks/speed/pictures.py`); backbones other than `lite`
have random weights of the real sizes. The three are measured in turns, several times, in one run; a rate
beside another one of the same turn is what counts, since other work on the machine slows all of them. Beside
the rates stands the processor time of each, with that of the decoding processes, which other work disturbs
less. Then the ways to decode, one after another on one processor; those that are not Pillow's need the
package `simplejpeg`, which nothing here depends on.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.speed.pictures import QUALITY, picture
from benchmarks.speed.setups import make_backbone
from pbprompt.batch import job as batch_job
from pbprompt.batch.output import Output
from pbprompt.clip.backbone import Backbone
from pbprompt.data.images import open_image
from pbprompt.data.square import square_of
from pbprompt.data.stream import Record, Stream
from pbprompt.data.stream.decoding import SquareDecoders
from pbprompt.features import streaming
from pbprompt.features.encode import default_batch
from pbprompt.features.streaming import decoders_for, encode_stream
from pbprompt.model.tuned import TunedModel

TURNS = 3
PICTURES = 16  # distinct ones; the rest are copies, which take as long to decode
WAYS = 100  # images for each way to decode


class Cost(NamedTuple):
    """Images a second, and milliseconds of processors an image."""

    rate: float
    processor: float


def timed(images: int, work: Callable[[], object]) -> Cost:
    """With the processor time of the processes that ended meanwhile."""
    wall, before = time.perf_counter(), os.times()
    work()
    wall, after = time.perf_counter() - wall, os.times()
    return Cost(images / wall, 1000 * (sum(after[:4]) - sum(before[:4])) / images)


def decode(backbone: Backbone, files: Sequence[Path]) -> None:
    """Files to squares, as the whole does it."""
    records = list(Stream(list(files)).records())
    geometry, size = backbone.preprocess.geometry, default_batch(backbone.device)
    with contextlib.closing(decoders_for(backbone)) as decoders:
        batches = ((at, records[at : at + size]) for at in range(0, len(records), size))
        for _ in streaming._decoded(batches, decoders, geometry):
            pass


class _Ready(SquareDecoders):
    """Has the same square for every image, at once."""

    def __init__(self, size: int) -> None:
        super().__init__(1)
        self._square = np.asarray(picture(0).resize((size, size)))

    def decode(self, records: Sequence[Any], geometry: Any) -> list[Any]:
        return [self._square] * len(records)


def tower(backbone: Backbone, images: int) -> None:
    """The tower on squares that need not be decoded, by the same threads on the same batches."""
    size = default_batch(backbone.device)
    batches = ((at, [Record("", b"")] * min(size, images - at)) for at in range(0, images, size))
    for _ in encode_stream(backbone, batches, _Ready(backbone.preprocess.size)):
        pass


def whole(model: TunedModel, folder: Path, out: Path) -> None:
    """From the folder to one file, without the cache."""
    job = batch_job.Job(model.backbone, model.predict, Stream([folder]), {"model": "benchmark"})
    output = Output(str(out))
    with output.opened(job.identity(output.suffix)):
        batch_job.run(job, output, batch_job.here, progress=False)


def measure(model: TunedModel, folder: Path, turns: int) -> list[dict[str, Cost]]:
    """The three, in turns."""
    files, backbone = sorted(folder.iterdir()), model.backbone
    found = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "answers.jsonl"
            found.append(
                {
                    "decoding": timed(len(files), partial(decode, backbone, files)),
                    "tower": timed(len(files), partial(tower, backbone, len(files))),
                    "whole": timed(len(files), partial(whole, model, folder, out)),
                }
            )
    return found


def ways(contents: Sequence[bytes], size: int) -> dict[str, tuple[float, int]]:
    """Milliseconds of a processor for each image, by way to decode, and how far off a pixel is at most."""

    def pillow(content: bytes) -> Image.Image:
        return square_of(open_image(io.BytesIO(content)), size, "crop", "bicubic")

    found: dict[str, Callable[[bytes], Image.Image]] = {"Pillow": pillow}
    try:
        import simplejpeg
    except ImportError:
        pass
    else:
        found["simplejpeg"] = lambda content: square_of(
            Image.fromarray(simplejpeg.decode_jpeg(content)), size, "crop", "bicubic"
        )
        found["simplejpeg, decoded to a smaller size"] = lambda content: square_of(
            Image.fromarray(simplejpeg.decode_jpeg(content, min_height=size, min_width=size)),
            size, "crop", "bicubic",
        )  # fmt: skip
    measured = {}
    for name, way in found.items():
        started = time.process_time()
        squares = [np.asarray(way(content)).astype(int) for content in contents]
        took = 1000 * (time.process_time() - started) / len(contents)
        off = max(
            int(np.abs(one - np.asarray(pillow(c))).max()) for one, c in zip(squares, contents, strict=True)
        )
        measured[name] = (took, off)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--backbone", default="lite")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    batch_job.CACHED_UNITS = 0
    backbone = make_backbone(options.backbone, options.device)
    model = TunedModel.zero_shot(backbone, ["cat", "dog", "guitar"])
    with tempfile.TemporaryDirectory() as name:
        folder, contents = Path(name), []
        for seed in range(PICTURES):
            stream = io.BytesIO()
            picture(seed).save(stream, "JPEG", quality=QUALITY)
            contents.append(stream.getvalue())
        for number in range(options.images):
            (folder / f"{number:07}.jpg").write_bytes(contents[number % PICTURES])
        turns = measure(model, folder, options.turns)
    by_way = ways([contents[n % PICTURES] for n in range(WAYS)], backbone.preprocess.size)
    report(turns, by_way)
    if options.json:
        facts = {"images": options.images, "backbone": options.backbone, "turns": turns, "ways": by_way}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


def report(turns: Sequence[dict[str, Cost]], by_way: dict[str, tuple[float, int]]) -> None:
    """Medians over the turns."""
    console = Console(width=110)
    table = Table("", "images/s", "beside the tower", "processor, ms an image", box=None)
    for part in turns[0]:
        rate = statistics.median(turn[part].rate for turn in turns)
        ratio = statistics.median(turn[part].rate / turn["tower"].rate for turn in turns)
        processor = statistics.median(turn[part].processor for turn in turns)
        table.add_row(part, f"{rate:.1f}", f"{ratio:.3f} ×", f"{processor:.2f}")
    console.print(table)
    table = Table("to a square", "processor, ms an image", "pixels off by at most", box=None)
    for name, (took, off) in by_way.items():
        table.add_row(name, f"{took:.2f}", str(off))
    console.print(table)


if __name__ == "__main__":
    main()
