"""Uploaded bytes: what is decoded, and what is refused before it is."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.apps.serve.images import decode_image
from pbprompt.apps.serve.limits import Limits, Refused

LIMITS = Limits(image_bytes=20_000, image_pixels=10_000)


def encoded(kind: str, size: tuple[int, int] = (20, 10), mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, "red" if mode == "RGB" else None).save(buffer, kind, **options)
    return buffer.getvalue()


def status_of(data: bytes) -> int:
    with pytest.raises(Refused) as refused:
        decode_image(data, LIMITS)
    assert refused.value.reason
    return refused.value.status


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_allowed_types_are_decoded(kind):
    image = decode_image(encoded(kind), LIMITS)
    assert image.mode == "RGB" and image.size == (20, 10)
    red, green, blue = image.getpixel((5, 5))
    assert red > 240 and green < 15 and blue < 15


def test_exif_turns_the_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(encoded("JPEG", exif=exif), LIMITS).size == (10, 20)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"plain text", 415),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415),
        (encoded("TIFF"), 415),
        (bytes(20_001), 413),
        (encoded("PNG", (101, 100), "1"), 413),
        (encoded("GIF", (101, 100), "P"), 413),
        (encoded("PNG", (1, 201), "1"), 422),
        (encoded("JPEG", (90, 90))[:-200], 422),
        (encoded("PNG", (90, 90))[:-40], 422),
    ],
)
def test_everything_else_is_refused(data, status):
    assert status_of(data) == status


def test_limits_are_inclusive():
    assert decode_image(encoded("PNG", (100, 100), "1"), LIMITS).size == (100, 100)
    assert decode_image(encoded("PNG", (1, 200), "1"), LIMITS).size == (1, 200)


def test_a_bomb_is_refused_before_its_pixels_are_read(monkeypatch):
    def never(self):
        raise AssertionError("the pixels were decoded")

    data = encoded("PNG", (101, 100), "1")
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", never)
    assert status_of(data) == 413


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]),
    keep=st.floats(0, 1),
    at=st.floats(0, 1),
    noise=st.binary(min_size=1, max_size=30),
)
def test_a_damaged_image_is_decoded_or_refused_but_nothing_else(kind, keep, at, noise):
    data = bytearray(encoded(kind))
    start = int(at * len(data))
    data[start : start + len(noise)] = noise
    try:
        image = decode_image(bytes(data[: int(keep * len(data))]), LIMITS)
    except Refused as refused:
        assert 400 <= refused.status < 500 and refused.reason
    else:
        assert image.mode == "RGB"
