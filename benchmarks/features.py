"""Time feature extraction, cold (every image decoded and encoded) and warm (read back from the cache).

    python benchmarks/features.py --data sample
    python benchmarks/features.py --data caltech101 --root DIR --limit 600 --json out.json

The cache is a temporary folder. Before the whole, the parts alone: decoding and the image tower.
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.encode import default_batch
from pbprompt.vision.images.decoding import squares_of
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.load import load_backbone


def decode_rate(backbone: Backbone, dataset: Dataset, items: tuple[Item, ...]) -> float:
    """Images/s of reading, decoding and transforming alone."""
    started = time.perf_counter()
    for _ in squares_of([dataset.file(item) for item in items], backbone.preprocess.cropper):
        pass
    return len(items) / (time.perf_counter() - started)


@torch.inference_mode()
def tower_rate(backbone: Backbone, seconds: float = 3.0) -> float:
    """Images/s of the image tower alone, at the batch size the bank uses."""
    batch, size = default_batch(backbone.device), backbone.preprocess.size
    images = torch.rand(batch, 3, size, size, device=backbone.device)
    backbone.image(images).global_.cpu()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        backbone.image(images).global_.cpu()  # the copy waits for the device
        done += batch
    return done / (time.perf_counter() - started)


def measure(backbone: Backbone, dataset: Dataset, items: tuple[Item, ...]) -> dict[str, float]:
    """Images/s by stage."""
    rates = {"decode alone": decode_rate(backbone, dataset, items), "tower alone": tower_rate(backbone)}
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("cold encode", "warm read"):
            bank = FeatureCache(backbone, cache=Path(folder))  # a new bank: nothing is kept but the files
            started = time.perf_counter()
            bank.encode(dataset.root, items)
            rates[stage] = len(items) / (time.perf_counter() - started)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="sample", help="a folder or a benchmark's name")
    parser.add_argument("--root", type=Path, help="the folder that holds the benchmark")
    parser.add_argument("--split", default="test", help="train, val or test")
    parser.add_argument("--limit", type=int, help="at most this many images, spread over the split")
    parser.add_argument("--backbone", default="lite")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()

    dataset = open_dataset(options.data, options.root)
    items = dataset.split(options.split)
    if options.limit:
        items = items[:: max(1, len(items) // options.limit)][: options.limit]
    backbone = load_backbone(options.backbone, device=options.device)
    rates = measure(backbone, dataset, items)

    console = Console(highlight=False)
    console.print(f"{dataset.name}: {len(items):,} images, {backbone.config.name} on {options.device}")
    table = Table("stage", "images/s")
    for stage, rate in rates.items():
        table.add_row(stage, f"{rate:,.1f}")
    console.print(table)
    report = {
        "dataset": dataset.name,
        "images": len(items),
        "backbone": backbone.config.name,
        "device": options.device,
        "processors": available_cpus(),
        "threads": torch.get_num_threads(),
        "batch": default_batch(backbone.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "images_per_second": {stage: round(rate, 1) for stage, rate in rates.items()},
        "warm_over_cold": round(rates["warm read"] / rates["cold encode"], 1),
    }
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
