"""The test transform against Pillow's resampling written out in numpy; views as pure functions."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.data.transforms import Preprocess, TrainView, normalise

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def cubic(x):
    # nested as Pillow nests it: the last bit of a weight can decide a pixel
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0


def resample_rows(pixels: np.ndarray, size: int) -> np.ndarray:
    """One pass of antialiased bicubic in 22-bit fixed point along the first axis."""
    scale = len(pixels) / size
    reach = max(scale, 1.0)
    rows = []
    for place in range(size):
        centre = (place + 0.5) * scale
        first = max(0, int(centre - 2 * reach + 0.5))
        last = min(len(pixels), int(centre + 2 * reach + 0.5))
        weights = [cubic((i - centre + 0.5) * (1.0 / reach)) for i in range(first, last)]
        total = sum(weights)
        fixed = [int(w / total * (1 << 22) + math.copysign(0.5, w)) for w in weights]
        summed = sum(w * row for w, row in zip(fixed, pixels[first:last].astype(np.int64), strict=True))
        rows.append(np.clip((summed + (1 << 21)) >> 22, 0, 255))
    return np.array(rows, dtype=np.uint8)


def resample_columns(pixels: np.ndarray, size: int) -> np.ndarray:
    return resample_rows(pixels.transpose(1, 0, 2), size).transpose(1, 0, 2)


def by_hand(image: Image.Image, size: int) -> list[np.ndarray]:
    """The transform step by step, for both orders of the two passes: newer Pillows take the cheaper one."""
    pixels = np.asarray(image)
    height, width, _ = pixels.shape
    if width <= height:
        new_width, new_height = size, int(size * height / width)
    else:
        new_width, new_height = int(size * width / height), size
    top, left = int(round((new_height - size) / 2.0)), int(round((new_width - size) / 2.0))  # noqa: RUF046
    results = []
    for resized in (
        resample_rows(resample_columns(pixels, new_width), new_height),
        resample_columns(resample_rows(pixels, new_height), new_width),
    ):
        crop = resized[top : top + size, left : left + size].astype(np.float32) / np.float32(255)
        results.append(((crop - np.float32(MEAN)) / np.float32(STD)).transpose(2, 0, 1))
    return results


def equals_one(tensor: torch.Tensor, expected: list[np.ndarray]) -> bool:
    return any(np.array_equal(tensor.numpy(), one) for one in expected)


@pytest.mark.parametrize(
    "shape", [(40, 30), (30, 40), (33, 33), (24, 24), (7, 50), (51, 24), (24, 25), (23, 90)]
)
def test_bit_identical_to_the_steps_by_hand(shape):
    image = noise(*shape)
    tensor = Preprocess(24, MEAN, STD)(image)
    assert tensor.dtype == torch.float32 and tensor.shape == (3, 24, 24) and tensor.is_contiguous()
    assert equals_one(tensor, by_hand(image, 24))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 20), st.integers(0, 3))
def test_any_shape_is_bit_identical(width, height, size, seed):
    image = noise(width, height, seed)
    assert equals_one(Preprocess(size, MEAN, STD)(image), by_hand(image, size))


def test_identity_names_every_number():
    plain = Preprocess(224, MEAN, STD)
    others = [
        Preprocess(225, MEAN, STD),
        Preprocess(224, STD, STD),
        Preprocess(224, MEAN, MEAN),
        Preprocess(224, MEAN, STD, draft=448),
        TrainView(224, MEAN, STD),
        TrainView(224, MEAN, STD, scale=(0.5, 1.0)),
        TrainView(224, MEAN, STD, ratio=(1.0, 1.0)),
        TrainView(224, MEAN, STD, interpolation="bilinear"),
    ]
    assert len({entry.identity for entry in [plain, *others]}) == 9
    assert plain.identity == Preprocess(224, MEAN, STD).identity


def test_a_view_is_a_function_of_seed_epoch_and_key():
    view, image = TrainView(16, MEAN, STD), noise(50, 40)
    first = view(image, seed=1, epoch=0, key="a.jpg")
    random.random(), np.random.random(), torch.rand(1)
    assert torch.equal(first, view(image, seed=1, epoch=0, key="a.jpg"))
    for change in ({"seed": 2}, {"epoch": 1}, {"key": "b.jpg"}):
        assert not torch.equal(first, view(image, **{"seed": 1, "epoch": 0, "key": "a.jpg", **change}))


def test_seed_and_epoch_do_not_run_into_each_other():
    view, image = TrainView(16, MEAN, STD), noise(50, 40)
    assert not torch.equal(view(image, seed=1, epoch=11, key="a"), view(image, seed=11, epoch=1, key="a"))


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1000))
def test_boxes_lie_in_the_image(width, height, seed):
    left, top, right, bottom = TrainView(8, MEAN, STD).box((width, height), random.Random(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height


@settings(deadline=None, max_examples=80)
@given(st.integers(100, 300), st.integers(100, 300), st.integers(0, 1000))
def test_boxes_keep_to_scale_and_ratio(width, height, seed):
    left, top, right, bottom = TrainView(8, MEAN, STD).box((width, height), random.Random(seed))
    w, h = right - left, bottom - top
    assert 0.07 <= w * h / (width * height) <= 1.0
    assert (w - 1) / (h + 1) <= 4 / 3 and (w + 1) / (h - 1) >= 3 / 4


@pytest.mark.parametrize(
    ("size", "expected"),
    # too narrow: all the width, width / (3/4) of the height; too wide: all the height, 4/3 of it in width
    [((30, 400), (0, 180, 30, 220)), ((400, 30), (180, 0, 220, 30)), ((60, 60), (0, 0, 60, 60))],
)
def test_after_ten_tries_the_centre(size, expected):
    hopeless = TrainView(8, MEAN, STD, scale=(50.0, 60.0))
    assert hopeless.box(size, random.Random(0)) == expected


@pytest.mark.parametrize("filtered", ["bicubic", "bilinear"])
def test_views_are_crops_resized_and_half_of_them_flipped(filtered):
    view = TrainView(12, MEAN, STD, scale=(1.0, 1.0), ratio=(1.0, 1.0), interpolation=filtered)
    image = noise(30, 30)
    resized = image.resize((12, 12), getattr(Image.Resampling, filtered.upper()))
    plain = np.asarray(resized).astype(np.float32) / np.float32(255)
    plain = ((plain - np.float32(MEAN)) / np.float32(STD)).transpose(2, 0, 1)
    flips = 0
    for epoch in range(200):
        out = view(image, seed=0, epoch=epoch, key="x").numpy()
        flipped = np.array_equal(out, plain[:, :, ::-1])
        assert flipped or np.array_equal(out, plain)
        flips += flipped
    assert 70 < flips < 130


def test_the_stream_is_pinned():
    # changing how a view is derived changes every training run: it must be on purpose
    view = TrainView(8, MEAN, STD)
    assert view.box((100, 80), view._source(1, 0, "a.jpg")) == (12, 0, 99, 80)


def test_a_batch_is_normalised_to_the_same_bits():
    test, view = Preprocess(24, MEAN, STD), TrainView(24, MEAN, STD)
    images = [noise(40, 30), noise(25, 60)]
    draw = {"seed": 1, "epoch": 2, "key": "a"}
    for pixels, wanted in (
        ([test.pixels(image) for image in images], [test(image) for image in images]),
        ([view.pixels(image, **draw) for image in images], [view(image, **draw) for image in images]),
    ):
        assert all(one.dtype == torch.uint8 and one.shape == (24, 24, 3) for one in pixels)
        assert torch.equal(normalise(torch.stack(pixels), MEAN, STD), torch.stack(wanted))


def test_every_byte_is_normalised_to_the_same_bits():
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(np.stack([ramp, ramp[::-1], ramp.T], axis=-1))
    whole = Preprocess(16, MEAN, STD)
    assert torch.equal(normalise(whole.pixels(image)[None], MEAN, STD)[0], whole(image))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_normalises_to_the_same_bits():
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(normalise(ramp.cuda(), MEAN, STD).cpu(), normalise(ramp, MEAN, STD))
