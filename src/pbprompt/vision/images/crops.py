"""From an image file to the square that a tower sees, and what processes that only decode run.

Without numpy and torch, so that these processes start quickly and stay small.
"""

import hashlib
import io
import math
import mmap
import os
import random
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol, cast, get_args

from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.images import open_image, read_file

Fit = Literal["crop", "pad", "squash"]
Interpolation = Literal["bicubic", "bilinear"]
Box = tuple[int, int, int, int]  # left, top, right, bottom
MOST_FILE = 1 << 30  # bytes of an image file that is read whole

THIN = 64  # times as long as wide: from here on, what the crop cuts away is not computed
MOST_HANDED_ON = 1 << 20  # pixels of an image that is resized elsewhere: eight of them wait in memory at once
BORDER = (124, 116, 104)  # the mean colour of photographs, near 0 once a tower has normalised it
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


class Hashed(NamedTuple):
    """A file of this machine that is known by the SHA-256 of its bytes: with others it is another image."""

    path: Path
    sha256: str

    def read(self) -> bytes:
        """The bytes, which are those that are decoded."""
        content = read_file(self.path, MOST_FILE)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise InputError(f"cannot read image {self.path}: it changed while it was read: try again")
        return content


# Of an image file, an open image, or why there is none.
Content = bytes | Path | Hashed | Image.Image | InputError


def framing_of(name: str) -> Fit | None:
    """What --framing asks for; "" is the backbone's own."""
    if name and name not in get_args(Fit):
        raise InputError(f"--framing {name}: choose {', '.join(get_args(Fit))}")
    return cast("Fit | None", name or None)


class Cropper(Protocol):
    """What makes a square of an image; `key` names the image, for views. `draft` is for `open_image`."""

    @property
    def size(self) -> int: ...

    @property
    def draft(self) -> int | None: ...

    def __call__(self, image: Image.Image, key: str, /) -> Image.Image: ...


@dataclass(frozen=True)
class Crop:
    """The fixed square. crop: CLIP's test crop, the short side resized to `size` (or to `resize`, if more),
    then the centre; pad: the whole image, with a border; squash: the whole, out of shape. `fast`:
    resized by who decodes, approximately (`decoding.finished`).
    """

    size: int
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"
    resize: int | None = None
    draft: int | None = None
    fast: bool = False

    def placed(self, before: tuple[int, int]) -> Box:
        """Width and height to resize an image of that size to, and the left and top of what is kept."""
        size, short, to = self.size, min(before), self.resize or self.size
        if self.fit == "squash":
            return size, size, 0, 0
        if self.fit == "pad":
            width, height = (max(1, round(size * side / max(before))) for side in before)
            return width, height, (width - size) // 2, (height - size) // 2
        width, height = (int(to * side / short) if side > short else to for side in before)
        return width, height, round((width - size) / 2), round((height - size) / 2)

    def __call__(self, image: Image.Image, key: str = "") -> Image.Image:
        size, before, how = self.size, image.size, RESAMPLING[self.interpolation]
        if self.fit == "squash":
            return image.resize((size, size), how)
        width, height, left, top = self.placed(before)
        if self.fit == "pad":
            square = Image.new("RGB", (size, size), BORDER)
            square.paste(image.resize((width, height), how), (-left, -top))
            return square
        if max(before) > THIN * min(before):  # resized as a whole it would take `size`² · long / short pixels
            x, y = before[0] / width, before[1] / height
            box = (left * x, top * y, (left + size) * x, (top + size) * y)
            return image.resize((size, size), how, box=box)
        if width > size:  # Pillow resizes across, then down: only what is kept need be resized down
            image = image.resize((width, before[1]), how).crop((left, 0, left + size, before[1]))
        return image.resize((size, height), how).crop((0, top, size, top + size))


@dataclass(frozen=True)
class Crops:
    """Several squares of one image on one canvas, one below another at its left."""

    crops: tuple[Crop, ...]
    draft: ClassVar[None] = None

    @property
    def size(self) -> int:
        return max(crop.size for crop in self.crops)

    @property
    def tops(self) -> list[int]:
        """Where each square begins, and behind them where the canvas ends."""
        return list(accumulate((crop.size for crop in self.crops), initial=0))

    def __call__(self, image: Image.Image, key: str = "") -> Image.Image:
        canvas = Image.new("RGB", (self.size, self.tops[-1]))
        for crop, top in zip(self.crops, self.tops, strict=False):
            canvas.paste(crop(image), (0, top))
        return canvas


@dataclass(frozen=True)
class TrainingView:
    """A random resized crop, flipped half the time: a pure function of (image, seed, epoch, key).

    The crop covers a share `scale` of the image's area with an aspect in `ratio` (log-uniform); ten tries,
    then the largest centred crop of an allowed aspect.
    """

    size: int
    seed: int
    epoch: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bicubic"
    draft: ClassVar[None] = None

    def __call__(self, image: Image.Image, key: str) -> Image.Image:
        source = self.source(key)
        how = RESAMPLING[self.interpolation]
        view = image.crop(self.box(image.size, source)).resize((self.size, self.size), how)
        return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if source.random() < 0.5 else view

    def source(self, key: str) -> random.Random:
        """The random numbers of one image's view."""
        digest = hashlib.sha256(f"{self.seed}\n{self.epoch}\n{key}".encode("utf-8", "surrogateescape"))
        return random.Random(int.from_bytes(digest.digest()[:8], "big"))

    def box(self, size: tuple[int, int], source: random.Random) -> Box:
        """The crop's corners, using only `source.random()`, whose stream Python promises never to change."""
        width, height = size
        low, high = map(math.log, self.ratio)
        for _ in range(10):
            area = width * height * (self.scale[0] + (self.scale[1] - self.scale[0]) * source.random())
            aspect = math.exp(low + (high - low) * source.random())
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


def square_of(name: str, content: Content, cropper: Cropper) -> Image.Image | InputError:
    """The square of an image, or why it has none. Of a fast cropper most images as they are."""
    if isinstance(content, InputError):
        return content
    where = str(content.path) if isinstance(content, Hashed) else name

    def seen(image: Image.Image) -> Image.Image:
        return image if _handed_on(image.size, cropper) else cropper(image, name)

    try:
        if isinstance(content, Hashed):
            content = content.read()
        if isinstance(content, Image.Image):
            return seen(content)
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        return open_image(file, draft=cropper.draft, finish=seen)
    except InputError as error:
        return InputError(str(error).replace("cannot read image upload:", f"cannot read image {where}:"))


def _handed_on(size: tuple[int, int], cropper: Cropper) -> bool:
    fast = isinstance(cropper, Crop) and cropper.fast and cropper.fit != "pad"
    if not fast or size == (cropper.size, cropper.size):  # would look finished
        return False
    return size[0] * size[1] <= MOST_HANDED_ON and max(size) <= THIN * min(size)


class Shared:
    """Memory that a process and its children see: the bytes of a file, for those who have its handle.

    What a child writes there needs no line to be sent over. It grows as it is asked for more.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._memory: mmap.mmap | None = None

    def memory(self, size: int) -> memoryview:
        """The first `size` bytes, to be read and written. EOFError: it was closed."""
        if self.handle < 0:
            raise EOFError
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, size)
            self._memory = mmap.mmap(self.handle, 0)
        return memoryview(self._memory)[:size]

    def close(self) -> None:
        """Give the handle back; what is still held of the memory stays good."""
        handle, self.handle, self._memory = self.handle, -1, None  # its number may soon be another file's
        os.close(handle)


def nameless_file() -> int:
    """The handle of an empty file that goes away with its last user: of memory alone where there is such."""
    try:
        return os.memfd_create("squares")
    except (AttributeError, OSError):  # another system than Linux, or an old one
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


_seen: dict[int, Shared] = {}  # by handle, in the processes, where a handle stays what it is


def squares_into(
    handle: int, names: Sequence[str], contents: Sequence[Content], cropper: Cropper
) -> list[tuple[int, int] | InputError]:
    """Put what `square_of` gives into the memory behind the handle, one after another; their sizes."""
    shared = _seen.setdefault(handle, Shared(handle))
    found: list[tuple[int, int] | InputError] = []
    end = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata
        for name, content in zip(names, contents, strict=True):
            one = square_of(name, content, cropper)
            if isinstance(one, InputError):
                found.append(one)
                continue
            pixels = one.tobytes()
            shared.memory(end + len(pixels))[end:] = pixels
            end += len(pixels)
            found.append(one.size)
    return found
