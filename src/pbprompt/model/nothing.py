"""Images with nothing to see: blank, noise, stripes, a page of text, a screen.

A classifier has an answer to each of them, often a sure one. They are told by their features x, beside those
of drawings p_k that show nothing:

    s(x) = max_k cos(x − μ, p_k − μ)                     nothing to see where s(x) > max(s̄ + z σ, max_i s_i)

μ is the mean of the training photographs' features, s̄ and σ the mean and deviation of their s_i: so what a
model was fitted to, be it pages or stripes, is something to it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Item
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone

FEWEST = 16  # photographs
DEVIATIONS = 4.5  # z: chosen on validation photographs (`benchmarks/nothing.py`)
SIDE = 224
PAPERS = ((255, 0), (240, 40), (20, 220))  # paper and ink

Picture = NDArray[np.uint8]

_made: dict[tuple[str, ...], Float[Tensor, "k d"]] = {}  # features of the drawings, by what sees them


class Nothing(NamedTuple):
    """What tells an image without content: tensors, as they are saved."""

    centre: Float[Tensor, " d"]
    """μ"""
    directions: Float[Tensor, "k d"]
    """(p_k − μ) / |p_k − μ|"""
    most: Float[Tensor, ""]
    """s from which on there is nothing to see"""

    @classmethod
    def fit(cls, backbone: Backbone, photographs: Float[Tensor, "n d"]) -> Self | None:
        """By the features of training photographs; None where these are too few."""
        if len(photographs) < FEWEST:
            return None
        images = unit(photographs.detach().cpu().float())
        centre, z = images.mean(0), DEVIATIONS * (1 + 2 / len(images))
        found = cls(centre, unit(unit(_features(backbone)) - centre), centre.new_tensor(-1.0))
        likeness = found._likeness(images)
        usual = likeness.mean() + z * likeness.std()
        return found._replace(most=usual.maximum(likeness.amax()))

    def knowing(self, images: Float[Tensor, "b d"]) -> Self:
        """With these as something to see."""
        return self._replace(most=self.most.maximum(self._likeness(unit(images.cpu().float())).amax()))

    def shown_by(self, images: Float[Tensor, "b d"]) -> Bool[Tensor, " b"]:
        """Which images have nothing to see."""
        own = type(self)(*(part.to(images.device) for part in self))
        return own._likeness(unit(images.float())) > own.most

    def _likeness(self, images: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return (unit(images - self.centre) @ self.directions.T).amax(1)


def _features(backbone: Backbone) -> Float[Tensor, "k d"]:
    """Of the drawings, kept as those of any images are."""
    see = tuple(f"{one.fingerprint} {one.dtype} {one.preprocess.identity}" for one in backbone.towers)
    if see not in _made:
        pictures = drawings()
        items = [Item(f"{place}.png", 0) for place in range(len(pictures))]
        with TemporaryDirectory() as folder:
            for item, picture in zip(items, pictures, strict=True):
                Image.fromarray(picture).save(Path(folder, item.path))
            encoded = FeatureCache(backbone, progress=False).encode(Path(folder), items)
        _made[see] = encoded.global_.cpu().float()
    return _made[see]


def drawings() -> list[Picture]:
    """The same on every machine: no font is needed, since any letters do."""
    chance = np.random.default_rng(0)
    plain = [(0, 0, 0), (255, 255, 255), (128, 128, 128), (200, 30, 30)]
    found = [_blown_up(np.array([[colour]])) for colour in plain]
    ramp = np.linspace(0, 255, SIDE)
    glow = 255 - 1.4 * np.hypot(*np.meshgrid(ramp - 128, ramp - 128))
    found += [_grey(np.tile(ramp, (SIDE, 1))), _grey(glow)]
    for mean, spread in ((128, 80), (12, 4)):
        noise = chance.normal(mean, spread, (SIDE, SIDE, 3)).clip(0, 255)
        found += [noise.astype(np.uint8), _grey(noise[:, :, 0])]
    found.append(_blown_up(chance.integers(0, 256, (SIDE // 8, SIDE // 8, 3))))
    colours = [chance.integers(0, 256, (1, bars, 3)) for bars in (4, 16)]
    for row in (colours[0], _checks(1, 8), colours[1], _checks(1, 32)):
        found += [_blown_up(row), _blown_up(row.transpose(1, 0, 2))]
    found.append(_blown_up(_checks(28, 28)))
    found += [_page(chance, size, *PAPERS[place % 3]) for place, size in enumerate((1, 1, 1, 2, 2, 2))]
    return found + [_screen(chance, size, dark) for size in (1, 2) for dark in (False, True, False)]


def _grey(values: NDArray[np.float64]) -> Picture:
    return np.repeat(values.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def _checks(rows: int, columns: int) -> NDArray[np.int_]:
    return np.repeat(np.indices((rows, columns)).sum(0)[:, :, None] % 2 * 255, 3, axis=2)


def _blown_up(colours: NDArray[np.int_]) -> Picture:
    """Few pixels as large ones."""
    rows, columns = (SIDE // count for count in colours.shape[:2])
    return colours.astype(np.uint8).repeat(rows, axis=0).repeat(columns, axis=1)


def _page(chance: np.random.Generator, size: int, paper: int, ink: int) -> Picture:
    page = np.full((SIDE, SIDE, 3), paper, np.uint8)
    _write(chance, page[12:-12, 12:-12], size, ink)
    return page


def _screen(chance: np.random.Generator, size: int, dark: bool) -> Picture:
    """A window with a bar above, a list at the left and a button."""
    paper, panel, ink = (32, 48, 200) if dark else (252, 232, 50)
    screen = np.full((SIDE, SIDE, 3), paper, np.uint8)
    screen[:16], screen[16:, :52] = panel, panel
    for top in range(26, 150, 16):
        screen[top : top + 6, 8 : 8 + chance.integers(20, 38)] = ink
    _write(chance, screen[26:180, 62:-12], size, ink)
    screen[190:208, 148:208] = (60, 110, 220)
    return screen


def _write(chance: np.random.Generator, room: Picture, size: int, ink: int) -> None:
    """Lines of words of letters, each letter some of five by four points."""
    height, width = room.shape[:2]
    for top in range(0, height - 5 * size, 9 * size):
        left, end = 0, width * (1.0 if chance.random() < 0.85 else chance.uniform(0.2, 0.8))
        while (letters := int(chance.integers(2, 10))) * 5 * size + left < end:
            for _ in range(letters):
                points = np.kron(chance.random((5, 4)) < 0.55, np.ones((size, size), bool))
                room[top : top + 5 * size, left : left + 4 * size][points] = ink
                left += 5 * size
            left += 4 * size
