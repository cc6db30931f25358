"""Images with nothing to see: how many are marked, and how many photographs are marked that show something.

    python -m benchmarks.nothing --root DATA --out benchmarks/results/nothing.json
    python -m benchmarks.nothing --root DATA --part val --deviations 4 4.5 5
    python -m benchmarks.nothing --show benchmarks/results/nothing.json

DATA is a folder of images. Of each set 500 photographs of a split, by chance; by so many of them the mark is
fitted (`model/nothing.py`); the others and 40 images of each kind without content are judged, in 20 draws.
These are made here, otherwise than those that the product compares with, by chance and from a seed. What of
the sets is marked is a false alarm. Deviations were chosen on `val`, whose made images have another seed.
"""

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from benchmarks.problems import DOMAINS, bank
from pbprompt import markdown
from pbprompt.files import write_text
from pbprompt.model import nothing
from pbprompt.model.nothing import Nothing
from pbprompt.research.provenance import commit
from pbprompt.vision.images.sources import open_dataset

SETS = ("caltech101", "oxford_pets", "flowers102", "grocery:photo", *(f"pacs:{one}" for one in DOMAINS))
PHOTOGRAPHS, MADE, DRAWS = 500, 40, 20
FITTED_BY = (16, 64, 128)
SEEDS = {"val": 1, "test": 2}  # of the made images
SIZES = ((640, 480), (480, 640), (800, 450), (600, 600))
WORDS = (
    "the",
    "of",
    "photograph",
    "in",
    "river",
    "a",
    "house",
    "window",
    "seven",
    "walked",
    "because",
    "total",
)


def made(seed: int) -> dict[str, list[Image.Image]]:
    """Images without content, by kind."""
    chance = np.random.default_rng(seed)
    kinds = (blank, noise, stripes, lens_cap, page, screen)
    return {kind.__name__.replace("_", " "): [kind(chance) for _ in range(MADE)] for kind in kinds}


def blank(chance: np.random.Generator) -> Image.Image:
    """One colour, or one running into another."""
    (width, height), (one, other) = _size(chance), chance.integers(0, 256, (2, 3))
    if chance.random() < 0.6:
        return Image.new("RGB", (width, height), tuple(one.tolist()))
    ramp = np.linspace(0, 1, width)[None, :, None]
    image = Image.fromarray(np.uint8(np.broadcast_to(one * (1 - ramp) + other * ramp, (height, width, 3))))
    return _turned(chance, image)


def noise(chance: np.random.Generator) -> Image.Image:
    """Of each point, in grey, around a colour, or coarse."""
    width, height = _size(chance)
    shape, kind = (height, width, 3), chance.integers(4)
    if kind == 0:
        return Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8))
    if kind == 1:
        coarse = chance.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grey = chance.normal(128, chance.uniform(20, 80), (height, width, 1))
    around = chance.integers(0, 256, 3) + chance.normal(0, chance.uniform(10, 40), shape)
    values = np.broadcast_to(grey, shape) if kind == 2 else around
    return Image.fromarray(np.uint8(values.clip(0, 255)))


def stripes(chance: np.random.Generator) -> Image.Image:
    bars = int(chance.integers(3, 25))
    colours = chance.integers(0, 256, (1, bars, 3), dtype=np.uint8)
    if chance.random() < 0.4:  # of two colours
        colours = colours[:, np.arange(bars) % 2]
    return _turned(chance, Image.fromarray(colours).resize(_size(chance), Image.Resampling.NEAREST))


def lens_cap(chance: np.random.Generator) -> Image.Image:
    """Dark, a little light from somewhere, and the sensor's noise."""
    width, height = _size(chance)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    (left, top), strength = chance.uniform(-1, 1, 2), chance.uniform(0, 1.5)
    light = 1 + strength * np.exp(-2 * ((x - left) ** 2 + (y - top) ** 2))
    tint = chance.uniform(2, 18) * (1 + chance.random() * np.array([0.4, 0, -0.1]))
    grain = chance.normal(0, chance.uniform(1, 5), (height, width, 3))
    return Image.fromarray(np.uint8((tint * light[..., None] + grain).clip(0, 255)))


def page(chance: np.random.Generator) -> Image.Image:
    """Text in one or two columns, perhaps with a heading."""
    image = Image.new("RGB", (600, 800), (255, 255, 255) if chance.random() < 0.7 else (250, 246, 235))
    draw, columns, size = ImageDraw.Draw(image), int(chance.integers(1, 3)), int(chance.integers(11, 22))
    if chance.random() < 0.5:
        draw.text((50, 25), f"Chapter {chance.integers(1, 30)}", font=ImageFont.load_default(30), fill=0)
    width = 520 // columns
    for column in range(columns):
        left = 50 + column * width
        _write(chance, draw, (left, 80, left + width - 20, 760), size, (20, 20, 20))
    return image


def screen(chance: np.random.Generator) -> Image.Image:
    """A window with a menu, mostly a list at the left, text, and some boxes with buttons."""
    dark = chance.random() < 0.4
    paper, panel, ink = (
        [(28, 30, 36), (44, 48, 56), (210,) * 3] if dark else [(252,) * 3, (237,) * 3, (40,) * 3]
    )
    image = Image.new("RGB", (1280, 800), paper)
    draw, bar = ImageDraw.Draw(image), tuple(chance.integers(40, 220, 3).tolist())
    draw.rectangle((0, 0, 1280, 44), fill=bar if chance.random() < 0.4 else panel)
    draw.text((20, 10), "File  Edit  View  Help", font=ImageFont.load_default(18), fill=ink)
    if chance.random() < 0.7:
        draw.rectangle((0, 44, 220, 800), fill=panel)
        for top in range(64, 664, 30):
            draw.text((20, top), str(chance.choice(WORDS)), font=ImageFont.load_default(16), fill=ink)
    for _ in range(int(chance.integers(1, 4))):
        left, top = int(chance.integers(240, 800)), int(chance.integers(60, 500))
        draw.rectangle((left, top, left + 300, top + 200), outline=ink)
        draw.rounded_rectangle((left + 10, top + 150, left + 110, top + 185), 6, fill=(50, 110, 220))
    _write(chance, draw, (240, 70, 1240, 780), int(chance.integers(14, 20)), ink)
    return image


def _write(
    chance: np.random.Generator,
    draw: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    size: int,
    ink: tuple[int, ...],
) -> None:
    font, (left, top, right, bottom) = ImageFont.load_default(size), box
    while top < bottom - size:
        line, end = "", (right - left) * chance.uniform(0.75, 1)
        while draw.textlength(line, font=font) < end - 3 * size:
            line += f"{chance.choice(WORDS)} "
        draw.text((left, top), line, font=font, fill=ink)
        top += int(size * (1.3 if chance.random() < 0.9 else 2.3))


def _size(chance: np.random.Generator) -> tuple[int, int]:
    return SIZES[chance.integers(len(SIZES))]


def _turned(chance: np.random.Generator, image: Image.Image) -> Image.Image:
    return image if chance.random() < 0.5 else image.transpose(Image.Transpose.ROTATE_90)


@torch.inference_mode()
def seen(images: list[Image.Image]) -> Float[Tensor, "n d"]:
    tower = bank().backbone
    parts = torch.stack([tower.preprocess(image) for image in images]).split(20)
    return torch.cat([tower.image(part).global_ for part in parts]).float()


def photographs(name: str, root: Path, part: str) -> Float[Tensor, "n d"]:
    dataset = open_dataset(name, root)
    items = dataset.split(part)
    chosen = np.random.default_rng(0).permutation(len(items))[:PHOTOGRAPHS]
    return bank().encode(dataset.root, [items[row] for row in chosen]).global_.float()


def judged(
    images: Float[Tensor, "n d"], empty: dict[str, Float[Tensor, "m d"]], fitted_by: int
) -> Iterator[dict[str, float]]:
    for seed in range(DRAWS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        told = Nothing.fit(bank().backbone, images[order[:fitted_by]])
        assert told is not None
        found = {"false alarms": images[order[fitted_by:]]} | empty
        yield {kind: float(told.shown_by(some).float().mean()) for kind, some in found.items()}


def measured(root: Path, part: str) -> dict[str, dict[str, dict[str, float]]]:
    """By set and number of photographs."""
    empty = {kind: seen(images) for kind, images in made(SEEDS[part]).items()}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in SETS:
        images = photographs(name, root, part)
        for count in FITTED_BY:
            draws = list(judged(images, empty, count))
            means = {kind: round(fmean(one[kind] for one in draws), 5) for kind in draws[0]}
            results.setdefault(name, {})[f"{count}"] = means
    return results


def show(results: dict[str, dict[str, dict[str, float]]]) -> str:
    kinds = list(next(iter(next(iter(results.values())).values())))
    rows = [
        (name, count, f"{of['false alarms']:.2%}", *(f"{of[kind]:.1%}" for kind in kinds[1:]))
        for name, counts in results.items()
        for count, of in counts.items()
    ]
    for count in map(str, FITTED_BY):
        mean = partial(_mean, results, count)
        marked = (f"{mean(kind):.1%}" for kind in kinds[1:])
        rows.append(("all", count, f"{mean('false alarms'):.3%}", *marked))
    return markdown.table(("set", "fitted by", *kinds), rows)


def _mean(results: dict[str, dict[str, dict[str, float]]], count: str, kind: str) -> float:
    return fmean(counts[count][kind] for counts in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--part", choices=SEEDS, default="test")
    parser.add_argument("--deviations", type=float, nargs="*", default=[nothing.DEVIATIONS])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())["marked"]))
        return
    for deviations in args.deviations:
        with patch.object(nothing, "DEVIATIONS", deviations):
            results: dict[str, Any] = {"commit": commit(), "deviations": deviations}
            results["marked"] = measured(args.root, args.part)
        print(f"z = {deviations:g}\n\n{show(results['marked'])}\n")
    if args.out:
        write_text(args.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
