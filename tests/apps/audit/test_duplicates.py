"""Groups of duplicates, and the search by blocks against every pair."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from pbprompt.apps.audit import duplicates
from pbprompt.apps.audit.duplicates import (
    BOUNDS,
    SIDE,
    Duplicates,
    SmallSquare,
    differences,
    find_duplicates,
    joined,
    near_pairs,
    outlines,
)
from pbprompt.vision.similarity import unit


def scattered(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and squares in a few clusters, so that some pairs are near, some nearly so."""
    generator = torch.Generator().manual_seed(3)
    kind = torch.randint(5, (count,), generator=generator)
    noise = torch.rand(count, 1, generator=generator)
    x = torch.randn(5, 8, generator=generator)[kind] + 0.5 * noise * torch.randn(
        count, 8, generator=generator
    )
    base = torch.rand(5, 3, 6, 6, generator=generator)[kind]
    drawn = base + 0.2 * noise[:, :, None, None] * torch.randn(count, 3, 6, 6, generator=generator)
    squares = torch.nn.functional.interpolate(drawn.clamp(0, 1), (SIDE, SIDE), mode="bilinear")
    return x, (255 * squares).to(torch.uint8)


def test_blocks_find_what_all_pairs_hold(monkeypatch):
    x, squares = scattered(40)
    cosine, outline = unit(x) @ unit(x).T, outlines(squares) @ outlines(squares).T
    pairs = list(itertools.combinations(range(40), 2))
    expected = [
        (i, j)
        for (i, j), difference in zip(pairs, differences(squares, torch.tensor(pairs)).tolist(), strict=True)
        if any(
            cosine[i, j] >= rule.cosine and outline[i, j] >= rule.outline and difference <= rule.difference
            for rule in BOUNDS
        )
    ]
    assert 5 < len(expected) < 300
    for rows in (7, 1000):
        monkeypatch.setattr(duplicates, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(duplicates, "MOST_OF_A_ROW", 40)
        assert [(i, j) for i, j, _ in near_pairs(x, squares)] == expected


def test_of_many_alike_all_are_in_one_group():
    x, squares = scattered(1)
    pairs = near_pairs(x.repeat(60, 1), squares.repeat(60, 1, 1, 1))
    assert len(pairs) < 60 * duplicates.MOST_OF_A_ROW
    assert joined(60, [(i, j) for i, j, _ in pairs]) == [tuple(range(60))]


def test_pairs_are_joined():
    assert joined(7, [(5, 1), (1, 3), (2, 4)]) == [(1, 3, 5), (2, 4)]


def test_exact_by_key_or_pixels_and_near_by_sight():
    x, squares = scattered(40)
    one, other = squares[0], squares[(squares - squares[0]).float().abs().flatten(1).mean(1).argmax()]
    slightly = (one.float() * 0.98).to(torch.uint8)
    stack = torch.stack([one, one, other, one, slightly])
    features = torch.stack([x[0], x[0], -x[0], x[0], x[0]])
    asked: list[tuple[int, int]] = []

    def same_pixels(first: int, second: int) -> bool:
        asked.append((first, second))
        return True

    found = find_duplicates(["a", "a", "b", "c", "d"], features, stack, same_pixels)
    assert found == [Duplicates((0, 1, 3, 4), exact=False)] and asked == [(0, 3)]
    assert find_duplicates(["a", "a", "b", "c"], features[:4], stack[:4], same_pixels) == [
        Duplicates((0, 1, 3), exact=True)
    ]
    assert find_duplicates(["a", "a", "b"], features[:3], stack[:3], same_pixels) == [
        Duplicates((0, 1), exact=True)
    ]
    assert find_duplicates(["b"], features[2:3], stack[2:3], same_pixels) == []


PAIR = torch.tensor([[0, 1]])


def picture(seed: int, size: tuple[int, int] = (200, 160)) -> Image.Image:
    """Soft blobs of colour."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def jpeg(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    return Image.open(stream).convert("RGB")


def small_square(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(SmallSquare()(image))).permute(2, 0, 1)


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
