"""Ways from a JPEG file to the square of 224 pixels that a tower sees, for `benchmarks.batch`.

Pillow's is the package's own, and what the others are held to: the short side resized by bicubic convolution,
across, cut to the columns of the centre, and then down, with a rounding to 8 bits between. Those of packages
that are not installed are left out; nothing here depends on them.
"""

import importlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from pbprompt.vision.images.crops import Crop
from pbprompt.vision.images.images import open_image

SIZE = 224
BICUBIC = Image.Resampling.BICUBIC

Pixels = NDArray[np.uint8]
Way = Callable[[bytes], Pixels]


class Found(NamedTuple):
    """Milliseconds of a processor an image; how far off a pixel is at most; the share that is off at all."""

    took: float
    off: int
    share: float


def measure(contents: Sequence[bytes], turns: int = 5) -> dict[str, Found]:
    """The ways in turns, the quickest turn of each: other work on the machine slows some of them."""
    torch.set_num_threads(1)
    ways = all_ways()
    took: dict[str, list[float]] = {}
    wanted = [ways["Pillow"](content) for content in contents]
    for _ in range(turns):
        for name, way in ways.items():
            started = time.process_time()
            for content in contents:
                way(content)
            took.setdefault(name, []).append(1000 * (time.process_time() - started) / len(contents))
    return {name: Found(min(times), *_off(ways[name], contents, wanted)) for name, times in took.items()}


def _off(way: Way, contents: Sequence[bytes], wanted: Sequence[Pixels]) -> tuple[int, float]:
    off = [np.abs(way(content).astype(int) - right) for content, right in zip(contents, wanted, strict=True)]
    return int(np.max(off)), float(np.mean([one > 0 for one in off]))


def all_ways() -> dict[str, Way]:
    """By name; the first is Pillow's."""
    ways: dict[str, Way] = {
        "Pillow": lambda content: np.asarray(Crop(SIZE)(_pillow(content))),
        "Pillow, cropped after both its passes": lambda content: _whole(_pillow(content)),
        "Pillow, the kept box alone resized": lambda content: _kept_box(_pillow(content)),
        "Pillow, reducing_gap=1": lambda content: _whole(_pillow(content), reducing_gap=1.0),
        "Pillow, draft": lambda content: np.asarray(Crop(SIZE)(open_image(io.BytesIO(content), draft=SIZE))),
        "Pillow, colours converted after resizing": _converted_after,
        "Pillow, then torch's uint8 resize": lambda content: _by_torch(np.asarray(_pillow(content))),
    }
    for package, of in OTHERS.items():
        try:
            ways |= of(importlib.import_module(package))
        except (ImportError, OSError, RuntimeError):  # not here, or without the library that it needs
            continue
    return ways


def _pillow(content: bytes) -> Image.Image:
    return open_image(io.BytesIO(content))


def _resized_to(width: int, height: int) -> tuple[int, int, int, int]:
    """Width and height that the image is resized to, and the left and top of what is kept."""
    short = min(width, height)
    wide, high = (int(SIZE * side / short) if side > short else SIZE for side in (width, height))
    return wide, high, round((wide - SIZE) / 2), round((high - SIZE) / 2)


def _box(width: int, height: int) -> tuple[float, float, float, float]:
    """What is kept, in pixels of the image."""
    wide, high, left, top = _resized_to(width, height)
    x, y = width / wide, height / high
    return left * x, top * y, (left + SIZE) * x, (top + SIZE) * y


def _whole(image: Image.Image, reducing_gap: float | None = None) -> Pixels:
    wide, high, left, top = _resized_to(*image.size)
    resized = image.resize((wide, high), BICUBIC, reducing_gap=reducing_gap)
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)))


def _kept_box(image: Image.Image) -> Pixels:
    return np.asarray(image.resize((SIZE, SIZE), BICUBIC, box=_box(*image.size)))


def _converted_after(content: bytes) -> Pixels:
    with Image.open(io.BytesIO(content)) as image:
        image.draft("YCbCr", None)
        wide, high, left, top = _resized_to(*image.size)
        resized = image.resize((wide, high), BICUBIC)
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)).convert("RGB"))


def _by_torch(pixels: Pixels) -> Pixels:
    high, wide = pixels.shape[:2]
    wide, high, left, top = _resized_to(wide, high)
    channels = torch.from_numpy(np.require(pixels, requirements="W")).permute(2, 0, 1)[None]
    resized = F.interpolate(channels, size=(high, wide), mode="bicubic", antialias=True)
    return resized[0, :, top : top + SIZE, left : left + SIZE].permute(1, 2, 0).contiguous().numpy()


def _simplejpeg(package: Any) -> dict[str, Way]:
    def smaller(content: bytes) -> Pixels:
        pixels = package.decode_jpeg(content, min_height=SIZE, min_width=SIZE)
        return np.asarray(Crop(SIZE)(Image.fromarray(pixels)))

    return {
        "simplejpeg, then Pillow's resize": lambda content: np.asarray(
            Crop(SIZE)(Image.fromarray(package.decode_jpeg(content)))
        ),
        "simplejpeg, decoded to a smaller size": smaller,
        "simplejpeg, then torch's uint8 resize": lambda content: _by_torch(package.decode_jpeg(content)),
    }


def _imagecodecs(package: Any) -> dict[str, Way]:
    return {
        "imagecodecs, then Pillow's resize": lambda content: np.asarray(
            Crop(SIZE)(Image.fromarray(package.jpeg8_decode(content)))
        )
    }


def _turbojpeg(package: Any) -> dict[str, Way]:
    decoder = package.TurboJPEG()  # raises where the system has no libturbojpeg
    return {
        "PyTurboJPEG, then Pillow's resize": lambda content: np.asarray(
            Crop(SIZE)(Image.fromarray(decoder.decode(content, pixel_format=package.TJPF_RGB)))
        )
    }


def _cykooz(package: Any) -> dict[str, Way]:
    resizer, bicubic = package.Resizer(), package.ResizeAlg.convolution(package.FilterType.catmull_rom)

    def to(image: Image.Image, height: int, box: tuple[float, float, float, float]) -> Image.Image:
        left, top, right, bottom = box
        crop = package.CropBox(left, top, right - left, bottom - top)
        made = Image.new("RGB", (SIZE, height))
        resizer.resize_pil(image, made, package.ResizeOptions(bicubic, crop_box=crop))
        return made

    def at_once(content: bytes) -> Pixels:
        image = _pillow(content)
        return np.asarray(to(image, SIZE, _box(*image.size)))

    def across_then_down(content: bytes) -> Pixels:
        image = _pillow(content)
        left, top, right, bottom = _box(*image.size)
        across = to(image, image.height, (left, 0.0, right, float(image.height)))
        return np.asarray(to(across, SIZE, (0.0, top, float(SIZE), bottom)))

    return {
        "Pillow, then cykooz.resizer": at_once,
        "Pillow, then cykooz.resizer across, then down": across_then_down,
    }


def _opencv(package: Any) -> dict[str, Way]:
    package.setNumThreads(1)

    def way(content: bytes, how: int) -> Pixels:
        pixels = package.imdecode(np.frombuffer(content, np.uint8), package.IMREAD_COLOR_RGB)
        wide, high, left, top = _resized_to(pixels.shape[1], pixels.shape[0])
        resized = package.resize(pixels, (wide, high), interpolation=how)
        return resized[top : top + SIZE, left : left + SIZE]

    return {
        "opencv, INTER_CUBIC": lambda content: way(content, package.INTER_CUBIC),
        "opencv, INTER_AREA": lambda content: way(content, package.INTER_AREA),
    }


def _vips(package: Any) -> dict[str, Way]:
    package.cache_set_max(0)

    def way(content: bytes) -> Pixels:
        image = package.Image.new_from_buffer(content, "", access="sequential")
        wide, high, left, top = _resized_to(image.width, image.height)
        resized = image.resize(wide / image.width, vscale=high / image.height, kernel="cubic")
        return resized.crop(left, top, SIZE, SIZE).numpy()

    return {"pyvips, cubic": way}


OTHERS: dict[str, Callable[[Any], dict[str, Way]]] = {
    "simplejpeg": _simplejpeg,
    "imagecodecs": _imagecodecs,
    "turbojpeg": _turbojpeg,
    "cykooz_resizer": _cykooz,
    "cv2": _opencv,
    "pyvips": _vips,
}
