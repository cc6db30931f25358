"""The approximate resize: near the exact one for every kind of square, the same in threads and in processes,
and not taken for images that are too large, too thin or squares already."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from pbprompt.vision.images import crops as squares
from pbprompt.vision.images.crops import Crop
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Record

LOOKS = {
    "crop": Crop(32),
    "longer than the crop": Crop(32, resize=40),
    "squash": Crop(32, fit="squash"),
    "bilinear": Crop(32, interpolation="bilinear"),
}


def photograph(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2))


def square(image: Image.Image, look: Crop, decoder: Decoder | None = None) -> np.ndarray:
    (found,) = (decoder or Decoder(1)).decode([Record("one", image)], replace(look, fast=True))
    assert isinstance(found, np.ndarray) and found.shape == (32, 32, 3)
    return found


@pytest.fixture(scope="module")
def process():
    with contextlib.closing(Decoder(1, processes=True)) as decoder:
        yield decoder


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("size", [(90, 61), (61, 90), (33, 200), (20, 16)])
def test_a_few_pixels_are_off_by_a_grey_level_or_two(look, size, process):
    image = photograph(*size)
    found, wanted = square(image, look), np.asarray(look(image, "one"))
    off = np.abs(found.astype(int) - wanted)
    assert off.max() <= 2 and (off > 0).mean() < 0.2
    assert np.array_equal(square(image, look, process), found)


def test_it_is_another_resize_than_the_exact_one():
    image, look = photograph(400, 300), Crop(128)
    (found,) = Decoder(1).decode([Record("one", image)], replace(look, fast=True))
    assert 0 < (np.asarray(found) != np.asarray(look(image))).mean() < 0.02


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("size", [(70, 70), (2100, 30), (32, 32)], ids=["large", "thin", "a square already"])
def test_other_images_are_resized_exactly(look, size, process, monkeypatch):
    monkeypatch.setattr(squares, "MOST_HANDED_ON", 4000)  # here: the process has its own
    image = photograph(*size)
    wanted = np.asarray(look(image, "one"))
    assert np.array_equal(square(image, look), wanted)
    if size != (70, 70):
        assert np.array_equal(square(image, look, process), wanted)


def test_one_that_fails_is_told_between_others(process):
    image = photograph(90, 61)
    upright = image.transpose(Image.Transpose.ROTATE_90)
    records = [Record("a", image), Record("b", b"nothing"), Record("c", upright)]
    first, bad, last = process.decode(records, Crop(32, fast=True))
    assert "cannot read image b" in str(bad)
    assert np.array_equal(first, square(image, Crop(32)))
    assert np.array_equal(last, square(upright, Crop(32)))
