"""Loading in order, in bounded memory, with unreadable images in their place."""

import threading
import time

import pytest
import torch
from PIL import Image

from pbprompt.data.loading import load_images, unreadable
from pbprompt.data.transforms import Preprocess
from pbprompt.errors import InputError


@pytest.fixture
def files(tmp_path):
    paths = []
    for place in range(40):
        paths.append(tmp_path / f"{place:02d}.png")
        Image.new("RGB", (4, 4), (place, 0, 0)).save(paths[-1])
    return paths


def red(image):
    return torch.tensor(image.getpixel((0, 0))[0])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_in_order_and_bad_ones_in_their_place(files, workers):
    files[7].write_bytes(b"")
    files[39].unlink()
    results = list(load_images(files, red, workers=workers))
    assert [index for index, _ in results] == list(range(40))
    for index, value in results:
        if index in (7, 39):
            assert isinstance(value, InputError) and files[index].name in str(value)
        else:
            assert int(value) == index


def test_keys_go_with_their_images(files):
    keys = [f"key {place}" for place in range(40)]
    results = load_images(files, lambda image, key: (int(red(image)), key), keys=keys, workers=3)
    assert [value for _, value in results] == [(place, f"key {place}") for place in range(40)]


def test_only_a_few_are_loaded_ahead(files):
    started, lock = [], threading.Lock()

    def transform(image):
        with lock:
            started.append(1)
        return red(image)

    stream = load_images(files, transform, workers=2)
    next(stream)
    while len(started) < 8:  # all that the workers were given
        time.sleep(0.01)
    assert len(started) == 8
    next(stream)
    stream.close()
    assert len(started) <= 9


def test_other_errors_are_not_swallowed(files):
    def broken(image):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(load_images(files, broken))


def test_draft_reaches_the_decoder(tmp_path):
    path = tmp_path / "big.jpg"
    Image.radial_gradient("L").resize((1024, 1024)).rotate(30).convert("RGB").save(path)
    exact = Preprocess(32, (0.0,) * 3, (1.0,) * 3)
    rough = Preprocess(32, (0.0,) * 3, (1.0,) * 3, draft=64)
    (_, first), (_, second) = (
        next(load_images([path], exact)),
        next(load_images([path], rough, draft=rough.draft)),
    )
    assert not torch.equal(first, second)
    assert (first - second).abs().max() < 0.05


def test_unreadable(files):
    files[3].write_bytes(b"text")
    found = list(unreadable(files))
    assert len(found) == 40 and [place for place, error in enumerate(found) if error] == [3]


def test_nothing_to_load():
    assert list(load_images([], red)) == []
