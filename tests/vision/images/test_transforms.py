"""The test transform against Pillow's resampling written out in numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.vision.images.crops import TrainingView
from pbprompt.vision.images.transforms import Preprocess, normalise

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
        Preprocess(224, MEAN, STD, fast=True),
    ]
    views = [
        TrainingView(224, seed=1, epoch=0),
        TrainingView(224, seed=1, epoch=0, scale=(0.5, 1.0)),
        TrainingView(224, seed=1, epoch=0, ratio=(1.0, 1.0)),
        TrainingView(224, seed=1, epoch=0, interpolation="bilinear"),
    ]
    texts = [entry.identity for entry in [plain, *others]] + [plain.identity_of(view) for view in views]
    assert len(set(texts)) == 10
    assert plain.identity_of(plain.view(2, 3)) == plain.identity_of(views[0])
    assert others[1].identity_of(views[0]) != plain.identity_of(views[0])
    assert plain.identity == Preprocess(224, MEAN, STD).identity


def test_a_batch_is_normalised_as_each_of_it():
    test = Preprocess(24, MEAN, STD)
    images = [noise(40, 30), noise(25, 60)]
    pixels = torch.stack([torch.from_numpy(np.array(test.cropper(image))) for image in images])
    assert torch.equal(normalise(pixels, MEAN, STD), torch.stack([test(image) for image in images]))


def test_every_byte_is_normalised_to_the_bits_of_numpy():
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.stack([ramp, ramp[::-1], ramp.T], axis=-1)
    wanted = (image.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    found = Preprocess(16, MEAN, STD)(Image.fromarray(image))
    assert np.array_equal(found.numpy(), wanted.transpose(2, 0, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_normalises_to_the_same_bits():
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(normalise(ramp.cuda(), MEAN, STD).cpu(), normalise(ramp, MEAN, STD))
