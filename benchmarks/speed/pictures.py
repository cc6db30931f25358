"""Synthetic photographs: JPEG files of ImageNet's usual size in pixels and bytes, for runs from files."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.speed.measuring import processes
from benchmarks.speed.setups import TEMPLATE
from pbprompt.research.costs import class_names
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.tokenizer import Tokenizer

SIZE = (500, 375)
GRAIN = 16.0  # amplitude of the noise: files of about 100 KB
QUALITY = 90


def make_dataset(folder: Path, tokenizer: Tokenizer, images: int, shots: int) -> Dataset:
    """So many files below the folder, `shots` a class, those of a class copies of one picture.

    To decode a copy takes as long as to decode another picture, to make one does not.
    """
    items = tuple(Item(f"{n // shots:04}/{n % shots:03}.jpg", n // shots) for n in range(images))
    classes = [items[start : start + shots] for start in range(0, images, shots)]
    with ProcessPoolExecutor(available_cpus(), mp_context=processes(__name__)) as pool:
        list(pool.map(_write_class, repeat(folder), classes, chunksize=8))
    names = class_names(tokenizer, len(classes))
    return Dataset("synthetic", folder, tuple(names), train=items, template=TEMPLATE)


def _write_class(folder: Path, items: Sequence[Item]) -> None:
    first, *others = (folder / item.path for item in items)
    first.parent.mkdir()
    picture(items[0].label).save(first, quality=QUALITY)
    for other in others:
        shutil.copyfile(first, other)


def picture(seed: int) -> Image.Image:
    """Soft colours, a few shapes, and grain."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y = random.integers(0, SIZE[0]), random.integers(0, SIZE[1])
        w, h = random.integers(20, 200, 2)
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape([x - w // 2, y - h // 2, x + w // 2, y + h // 2], fill=colour)
    grain = random.standard_normal((SIZE[1], SIZE[0], 1), dtype=np.float32) * np.float32(GRAIN)
    return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))
