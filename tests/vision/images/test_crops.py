"""The crop of any shape, to today's bits for ordinary images and within rounding for lines; views as pure
functions; memory behind a handle: one sees what the other wrote, and never another file."""

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.vision.images.crops import BORDER, THIN, Crop, Shared, TrainingView, nameless_file
from pbprompt.vision.towers.loading.load import load_backbone


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
        assert np.array_equal(Crop(size)(image), plainly(image, size))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.integers(65, 400), st.integers(1, 40), st.booleans())
def test_lines_differ_by_rounding_alone(short, ratio, size, upright):
    image = noise(short, short * ratio + 1) if upright else noise(short * ratio + 1, short)
    image = image.point(lambda level: 64 + level // 2)  # Pillow cuts off between its passes, in either order
    found, wanted = (np.asarray(one).astype(int) for one in (Crop(size)(image), plainly(image, size)))
    assert abs(found - wanted).max() <= 2


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1)])
def test_only_what_is_kept_is_computed(shape, monkeypatch):
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *a, **k: sizes.append(size) or resize(self, size, *a, **k)
    )
    assert Crop(224)(Image.new("RGB", shape)).size == (224, 224)
    assert sizes == [(224, 224)]


def test_the_short_side_may_be_longer_than_the_crop():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    whole = np.asarray(image.resize((54, 36), Image.Resampling.BICUBIC))
    assert np.array_equal(Crop(32, resize=36)(image), whole[2:34, 11:43])
    thin = Image.new("RGB", (4, 4 * THIN + 4))
    assert Crop(32, resize=36)(thin).size == (32, 32)


def test_a_view_is_a_function_of_seed_epoch_and_key():
    image = noise(50, 40)
    first = TrainingView(16, seed=1, epoch=0)(image, "a.jpg")
    random.random(), np.random.random()
    assert first == TrainingView(16, seed=1, epoch=0)(image, "a.jpg")
    for seed, epoch, key in ((2, 0, "a.jpg"), (1, 1, "a.jpg"), (1, 0, "b.jpg")):
        assert first != TrainingView(16, seed, epoch)(image, key)


def test_seed_and_epoch_do_not_run_into_each_other():
    image = noise(50, 40)
    assert TrainingView(16, seed=1, epoch=11)(image, "a") != TrainingView(16, seed=11, epoch=1)(image, "a")


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1000))
def test_boxes_lie_in_the_image(width, height, seed):
    left, top, right, bottom = TrainingView(8, 0, 0).box((width, height), random.Random(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height


@settings(deadline=None, max_examples=80)
@given(st.integers(100, 300), st.integers(100, 300), st.integers(0, 1000))
def test_boxes_keep_to_scale_and_ratio(width, height, seed):
    left, top, right, bottom = TrainingView(8, 0, 0).box((width, height), random.Random(seed))
    w, h = right - left, bottom - top
    assert 0.07 <= w * h / (width * height) <= 1.0
    assert (w - 1) / (h + 1) <= 4 / 3 and (w + 1) / (h - 1) >= 3 / 4


@pytest.mark.parametrize(
    ("size", "expected"),
    # too narrow: all the width, width / (3/4) of the height; too wide: all the height, 4/3 of it in width
    [((30, 400), (0, 180, 30, 220)), ((400, 30), (180, 0, 220, 30)), ((60, 60), (0, 0, 60, 60))],
)
def test_after_ten_tries_the_centre(size, expected):
    hopeless = TrainingView(8, 0, 0, scale=(50.0, 60.0))
    assert hopeless.box(size, random.Random(0)) == expected


@pytest.mark.parametrize("filtered", ["bicubic", "bilinear"])
def test_views_are_crops_resized_and_half_of_them_flipped(filtered):
    image = noise(30, 30)
    plain = np.asarray(image.resize((12, 12), getattr(Image.Resampling, filtered.upper())))
    flips = 0
    for epoch in range(200):
        view = TrainingView(12, 0, epoch, scale=(1.0, 1.0), ratio=(1.0, 1.0), interpolation=filtered)
        out = np.asarray(view(image, "x"))
        flipped = np.array_equal(out, plain[:, ::-1])
        assert flipped or np.array_equal(out, plain)
        flips += flipped
    assert 70 < flips < 130


def test_the_stream_is_pinned():
    # changing how a view is derived changes every training run: it must be on purpose
    view = TrainingView(8, seed=1, epoch=0)
    assert view.box((100, 80), view.source("a.jpg")) == (12, 0, 99, 80)


@pytest.mark.parametrize("of_memory", [True, False])
def test_both_see_the_same_bytes_and_more_of_them_when_it_has_grown(of_memory, monkeypatch):
    if not of_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    ours = Shared(nameless_file())
    theirs = Shared(os.dup(ours.handle))
    ours.memory(3)[:] = bytes([7, 7, 7])
    assert theirs.memory(3).tolist() == [7, 7, 7]
    theirs.memory(3)[1] = 8
    assert ours.memory(100_000)[:4].tolist() == [7, 8, 7, 0]
    ours.memory(100_000)[-1] = 9
    assert theirs.memory(100_000)[-1] == 9
    for one in (ours, theirs):
        one.close()


def test_a_closed_one_touches_no_file_that_has_its_number_now(tmp_path):
    shared = Shared(nameless_file())
    held = shared.memory(5)
    number = shared.handle
    shared.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    with pytest.raises(EOFError):
        shared.memory(5)
    assert os.fstat(other).st_size == 0 and held.tolist() == [0] * 5
    os.close(other)


def test_a_border_keeps_the_whole_image():
    """The long side fills the square, the short one is in its middle; what is around it is the border."""
    for size, box in (
        ((300, 100), (0, 21, 64, 42)),
        ((100, 300), (21, 0, 42, 64)),
        ((50, 50), (0, 0, 64, 64)),
    ):
        square = Crop(64, "pad")(Image.new("RGB", size, (200, 10, 10)))
        pixels = np.asarray(square)
        own = (pixels == (200, 10, 10)).all(-1)
        rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
        assert (pixels[~own] == BORDER).all() and square.size == (64, 64)
        found = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert all(abs(mine - wanted) <= 1 for mine, wanted in zip(found, box, strict=True))
    assert Crop(64, "pad")(Image.new("RGB", (5000, 1))).size == (64, 64)


def test_framings_are_told_apart_in_the_cache():
    see = load_backbone("lite").preprocess
    assert len({replace(see, fit=fit).identity for fit in ("crop", "pad", "squash")}) == 3
