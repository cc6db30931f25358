"""The crop of any shape, to today's bits for ordinary images and within rounding for lines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.data.square import THIN, central_square


def noise(width, height):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def plainly(image: Image.Image, size: int) -> Image.Image:
    """The whole image resized, then cropped."""
    width, height = image.size
    long = int(size * max(width, height) / min(width, height))
    width, height = (size, long) if width <= height else (long, size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40))
def test_ordinary_images_keep_their_bits(width, height, size):
    image = noise(width, height)
    if max(width, height) <= THIN * min(width, height):
        assert np.array_equal(central_square(image, size), plainly(image, size))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.integers(65, 400), st.integers(1, 40), st.booleans())
def test_lines_differ_by_rounding_alone(short, ratio, size, upright):
    image = noise(short, short * ratio + 1) if upright else noise(short * ratio + 1, short)
    image = image.point(lambda level: 64 + level // 2)  # Pillow cuts off between its passes, in either order
    found, wanted = (np.asarray(one(image, size)).astype(int) for one in (central_square, plainly))
    assert abs(found - wanted).max() <= 2


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1)])
def test_only_what_is_kept_is_computed(shape, monkeypatch):
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *a, **k: sizes.append(size) or resize(self, size, *a, **k)
    )
    assert central_square(Image.new("RGB", shape), 224).size == (224, 224)
    assert sizes == [(224, 224)]


def test_the_short_side_may_be_longer_than_the_crop():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    whole = np.asarray(image.resize((54, 36), Image.Resampling.BICUBIC))
    assert np.array_equal(central_square(image, 32, resize=36), whole[2:34, 11:43])
    thin = Image.new("RGB", (4, 4 * THIN + 4))
    assert central_square(thin, 32, resize=36).size == (32, 32)
