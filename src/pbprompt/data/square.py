"""The square of an image that a tower sees; without torch, for processes that only decode."""

from typing import Literal

from PIL import Image

Fit = Literal["crop", "squash"]
Interpolation = Literal["bicubic", "bilinear"]

THIN = 64  # times as long as wide: from here on, what the crop cuts away is not computed
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def square_of(
    image: Image.Image, size: int, fit: Fit, interpolation: Interpolation, resize: int | None = None
) -> Image.Image:
    """crop: the short side resized to `resize`, or else to `size`, then the centre; squash: the whole image,
    out of shape."""
    if fit == "squash":
        return image.resize((size, size), RESAMPLING[interpolation])
    return central_square(image, size, interpolation, resize)


def central_square(
    image: Image.Image, size: int, interpolation: Interpolation = "bicubic", resize: int | None = None
) -> Image.Image:
    """CLIP's test crop: resize of the short side to `size` (or to `resize`, if more), then the centre."""
    before, how = image.size, RESAMPLING[interpolation]
    short, long = min(before), max(before)
    to = resize or size
    width, height = (int(to * side / short) if side > short else to for side in before)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if long > THIN * short:  # resized as a whole it would take `size`² · long / short pixels
        x, y = before[0] / width, before[1] / height
        box = (left * x, top * y, (left + size) * x, (top + size) * y)
        return image.resize((size, size), how, box=box)
    if width > size:  # Pillow resizes across, then down: only what is kept need be resized down
        image = image.resize((width, before[1]), how).crop((left, 0, left + size, before[1]))
    return image.resize((size, height), how).crop((0, top, size, top + size))
