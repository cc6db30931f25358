"""What the tests of batches share: a model on a tiny tower, and pictures of any number."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pbprompt.model.tuned import TunedModel


@pytest.fixture(scope="session")
def model(tiny_vit) -> TunedModel:
    return TunedModel.zero_shot(tiny_vit, ["cat", "dog", "hen"])


@pytest.fixture(scope="session")
def picture():
    """A function from a number to the bytes of a picture."""

    def draw(seed: int) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (36, 40, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return stream.getvalue()

    return draw


@pytest.fixture
def photos(tmp_path, picture) -> Path:
    """Eleven pictures, and one that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(11):
        (folder / f"{seed:02}.png").write_bytes(picture(seed))
    (folder / "05.png").write_bytes(b"no image")
    return folder
