"""Synthetic photographs: JPEG files of ImageNet's usual size in pixels and bytes, for runs from files."""

from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pbprompt.bench.measure import processes
from pbprompt.bench.setups import TEMPLATE, class_names
from pbprompt.clip.tokenizer import Tokenizer
from pbprompt.data.items import Dataset, Item
from pbprompt.data.loading import available_cpus

SIZE = (500, 375)
GRAIN = 16.0  # amplitude of the noise: files of about 100 KB
QUALITY = 90


def make_dataset(folder: Path, tokenizer: Tokenizer, images: int, shots: int) -> Dataset:
    """So many pictures below the folder, `shots` a class."""
    items = tuple(Item(f"{n // shots:04}/{n % shots:03}.jpg", n // shots) for n in range(images))
    for name in {item.path.split("/")[0] for item in items}:
        (folder / name).mkdir()
    files = [folder / item.path for item in items]
    with ProcessPoolExecutor(available_cpus(), mp_context=processes()) as pool:
        list(pool.map(_write_some, [files[start::64] for start in range(64)], range(64), repeat(64)))
    names = class_names(tokenizer, items[-1].label + 1)
    return Dataset("synthetic", folder, tuple(names), train=items, template=TEMPLATE)


def _write_some(files: list[Path], first: int, stride: int) -> None:
    for number, file in enumerate(files):
        picture(first + stride * number).save(file, quality=QUALITY)


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
