"""From an image to the tensor a CLIP tower reads: the fixed test transform and random training views."""

import hashlib
import math
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from pbprompt.data.square import RESAMPLING, Fit, Interpolation, square_of

Triple = tuple[float, float, float]
Box = tuple[int, int, int, int]  # left, top, right, bottom


def _normalised(image: Image.Image, mean: Triple, std: Triple) -> Float[Tensor, "3 h w"]:
    """(x / 255 − mean) / std in float32, channels first.

    In numpy rather than torch: it runs in loader threads, where torch would start threads of its own.
    """
    pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    pixels -= np.asarray(mean, dtype=np.float32)[:, None, None]
    pixels /= np.asarray(std, dtype=np.float32)[:, None, None]
    return torch.from_numpy(np.ascontiguousarray(pixels))


def pixels_of(image: Image.Image) -> UInt8[Tensor, "h w 3"]:
    """The bytes of an RGB image: loader threads hand these on, and whole batches are normalised at once."""
    return torch.from_numpy(np.array(image))


def normalise(pixels: UInt8[Tensor, "b h w 3"], mean: Triple, std: Triple) -> Float[Tensor, "b 3 h w"]:
    """`_normalised` of a batch, to the same bits, on the device where it is."""
    whole, mean_, std_ = (_planes(values, pixels.device) for values in ((255.0,), tuple(mean), tuple(std)))
    channels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return channels.div_(whole).sub_(mean_).div_(std_)


@lru_cache(maxsize=64)  # to send them to a GPU would be to wait for all that it has been given
@torch.inference_mode(False)
def _planes(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "c 1 1"]:
    """As a tensor: a GPU multiplies by the inverse of a plain number, which rounds otherwise."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


def _named(kind: str, **values: object) -> str:
    return f"{kind}({', '.join(f'{name}={value}' for name, value in values.items() if value is not None)})"


@dataclass(frozen=True)
class Preprocess:
    """A model's test transform, bit for bit: CLIP's is a bicubic resize of the short side, centre crop,
    normalise; SigLIP's squashes the whole image to the square (`fit`); DINOv2's makes the short side
    longer than the crop (`resize`).

    `draft`, where given, asks the loader for the faster, approximate JPEG decoding of `open_image`.
    """

    size: int
    mean: Triple
    std: Triple
    draft: int | None = None
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"
    resize: int | None = None

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 size size"]:
        return self.normalised(self.square(image))

    def pixels(self, image: Image.Image) -> UInt8[Tensor, "size size 3"]:
        """The same before it is normalised."""
        return pixels_of(self.square(image))

    def normalised(self, square: Image.Image) -> Float[Tensor, "3 size size"]:
        """What the tower reads of a square: to make a square of it again would crop it twice."""
        return _normalised(square, self.mean, self.std)

    def square(self, image: Image.Image) -> Image.Image:
        """The square that the tower sees."""
        return square_of(image, *self.geometry)

    @property
    def geometry(self) -> tuple[int, Fit, Interpolation, int | None]:
        """What `square_of` needs, for processes that have no torch."""
        return self.size, self.fit, self.interpolation, self.resize

    @property
    def identity(self) -> str:
        """A text naming the transform and all its numbers, for cache keys."""
        return _named(
            "clip-test",
            size=self.size,
            mean=tuple(self.mean),
            std=tuple(self.std),
            draft=self.draft,
            fit=None if self.fit == "crop" else self.fit,
            interpolation=None if self.interpolation == "bicubic" else self.interpolation,
            resize=self.resize,
        )


@dataclass(frozen=True)
class TrainView:
    """A random resized crop, flipped half the time: a pure function of (image, seed, epoch, key).

    The crop covers a share `scale` of the image's area with an aspect in `ratio` (log-uniform); ten tries,
    then the largest centred crop of an allowed aspect.
    """

    size: int
    mean: Triple
    std: Triple
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bicubic"

    def __call__(
        self, image: Image.Image, *, seed: int, epoch: int, key: str
    ) -> Float[Tensor, "3 size size"]:
        return _normalised(self._square(image, seed, epoch, key), self.mean, self.std)

    def pixels(self, image: Image.Image, *, seed: int, epoch: int, key: str) -> UInt8[Tensor, "size size 3"]:
        """The same before it is normalised."""
        return pixels_of(self._square(image, seed, epoch, key))

    def _square(self, image: Image.Image, seed: int, epoch: int, key: str) -> Image.Image:
        source = self._source(seed, epoch, key)
        view = image.crop(self.box(image.size, source)).resize(
            (self.size, self.size), RESAMPLING[self.interpolation]
        )
        if source.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return view

    @staticmethod
    def _source(seed: int, epoch: int, key: str) -> random.Random:
        digest = hashlib.sha256(f"{seed}\n{epoch}\n{key}".encode("utf-8", "surrogateescape")).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))

    def box(self, size: tuple[int, int], source: random.Random) -> Box:
        """The crop's corners, using only `source.random()`, whose stream Python promises never to change."""
        width, height = size
        for _ in range(10):
            area = width * height * _uniform(source, *self.scale)
            aspect = math.exp(_uniform(source, math.log(self.ratio[0]), math.log(self.ratio[1])))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left = int(source.random() * (width - w + 1))
                top = int(source.random() * (height - h + 1))
                return left, top, left + w, top + h
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        w = min(width, max(1, round(height * aspect)))
        h = min(height, max(1, round(width / aspect)))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    @property
    def identity(self) -> str:
        """A text naming the family of views and all its numbers, for cache keys."""
        return _named(
            "train-view",
            size=self.size,
            mean=tuple(self.mean),
            std=tuple(self.std),
            scale=tuple(self.scale),
            ratio=tuple(self.ratio),
            interpolation=None if self.interpolation == "bicubic" else self.interpolation,
        )


def _uniform(source: random.Random, low: float, high: float) -> float:
    return low + (high - low) * source.random()
