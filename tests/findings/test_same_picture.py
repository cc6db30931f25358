"""Pictures that were saved again, resized or cropped are the same; others are not."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pbprompt.findings.same_picture import SIDE, differences, outlines, small_square

PAIR = torch.tensor([[0, 1]])


def picture(seed: int, size: tuple[int, int] = (200, 160)) -> Image.Image:
    """Soft blobs of colour."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def jpeg(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(differences(torch.stack([small_square(one), small_square(other)]), PAIR))


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda image: image, 0.0),
        (jpeg, 0.2),
        (lambda image: image.resize((100, 80)), 0.2),
        (lambda image: image.crop((10, 4, 196, 152)), 0.4),
    ],
    ids=["same", "saved again", "half size", "cropped"],
)
def test_the_same_picture(change, most):
    one = picture(1)
    assert difference(one, change(one)) <= most
    assert difference(change(one), one) <= most  # either may be the cropped one


def test_another_picture():
    assert difference(picture(1), picture(2)) > 1


def test_a_part_in_another_colour_is_another_picture():
    other = picture(1).copy()
    other.paste((255, 0, 0), (80, 60, 120, 100))
    assert difference(picture(1), other) > 0.7


def test_one_colour_is_compared_too():
    white, black = (Image.new("RGB", (50, 50), colour) for colour in ("white", "black"))
    assert difference(white, white) == 0 and difference(white, black) > 10


def test_outlines_are_correlations():
    squares = torch.stack([small_square(picture(seed)) for seed in (1, 2)])
    found = outlines(squares)
    coarse = squares.float().reshape(2, 3, 16, SIDE // 16, 16, SIDE // 16).mean((3, 5)).flatten(1).numpy()
    assert float(found[0] @ found[1]) == pytest.approx(np.corrcoef(coarse)[0, 1], abs=1e-5)
    assert float(found[0] @ found[0]) == pytest.approx(1)


def test_no_pairs_have_no_differences():
    assert differences(torch.zeros(0, 3, SIDE, SIDE, dtype=torch.uint8), torch.zeros(0, 2).long()).shape == (
        0,
    )
