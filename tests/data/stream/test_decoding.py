"""Squares from processes: Pillow's own, whatever is asked for before, after and beside."""

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from pbprompt.data.square import square_of
from pbprompt.data.stream.decoding import SquareDecoders
from pbprompt.data.stream.records import Record
from pbprompt.errors import InputError

SMALL, LARGE = (8, "crop", "bicubic", None), (24, "squash", "bilinear", None)


@pytest.fixture(scope="module")
def decoders():
    with contextlib.closing(SquareDecoders(1)) as processes:
        yield processes


def photograph(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def record(seed: int) -> Record:
    stream = io.BytesIO()
    photograph(seed).save(stream, "PNG")
    return Record(f"{seed}.png", stream.getvalue())


def test_squares_of_any_size_and_number_asked_for_at_once(decoders):
    questions = [(seeds, geometry) for seeds in ([0], [1, 2, 3], [4]) for geometry in (SMALL, LARGE)] * 3

    def right(question) -> bool:
        seeds, geometry = question
        found = decoders.decode([record(seed) for seed in seeds], geometry)
        return all(
            np.array_equal(a, square_of(photograph(b), *geometry)) for a, b in zip(found, seeds, strict=True)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(right, questions))


def test_those_that_have_no_square_are_told_in_their_place(decoders):
    lost = Record("lost.png", InputError("cannot read image lost.png: gone"))
    found = decoders.decode([record(1), Record("bad.png", b"nonsense"), lost, record(2)], SMALL)
    assert [str(one) for one in found[1:3]] == [
        "cannot read image bad.png: its content is no known image format",
        "cannot read image lost.png: gone",
    ]
    assert np.array_equal(found[0], square_of(photograph(1), *SMALL))
    assert np.array_equal(found[3], square_of(photograph(2), *SMALL))


def test_processes_load_no_more_than_they_need(decoders):
    loaded = decoders.ask(eval, "list(__import__('sys').modules)")
    assert "PIL.Image" in loaded and not {"numpy", "torch", "ftfy"} & set(loaded)


def test_after_closing_every_image_fails_and_nothing_is_started():
    decoders = SquareDecoders(1)
    decoders.close()
    (found,) = decoders.decode([record(1)], SMALL)
    assert "its decoder broke down" in str(found)
