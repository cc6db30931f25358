"""Opening images: every mode becomes upright RGB, and what cannot be read says so in one line."""

import io
import struct
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageFile

from pbprompt.errors import InputError
from pbprompt.vision.images import images
from pbprompt.vision.images.crops import Crop
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.images import HEIC, head_of, is_heic, looks_like_image, open_image, read_file
from pbprompt.vision.images.stream import Record

RED = (200, 30, 40)


def saved(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def pixel(path, place=(0, 0)):
    image = open_image(path)
    assert image.mode == "RGB"
    return image.getpixel(place)


def test_suffix_is_not_trusted(tmp_path):
    path = saved(tmp_path, Image.new("RGB", (4, 3), RED), "photo.jpg", format="PNG")
    assert pixel(path) == RED
    bare = path.rename(tmp_path / "photo")
    assert pixel(bare) == RED


def test_palette_and_palette_with_transparency(tmp_path):
    palette = Image.new("RGB", (4, 3), RED).quantize(4)
    assert pixel(saved(tmp_path, palette, "p.png")) == RED
    clear = saved(tmp_path, palette, "clear.png", transparency=palette.getpixel((0, 0)))
    assert pixel(clear) == (255, 255, 255)


@pytest.mark.parametrize(("alpha", "expected"), [(0, 255), (255, 40), (51, 212)])
def test_transparent_is_laid_on_white(tmp_path, alpha, expected):
    # 40·a + 255·(1 − a) with a = alpha / 255; 51/255 is 0.2, so 8 + 204
    rgba = Image.new("RGBA", (2, 2), (40, 40, 40, alpha))
    assert pixel(saved(tmp_path, rgba, "rgba.png")) == (expected,) * 3
    assert pixel(saved(tmp_path, Image.new("LA", (2, 2), (40, alpha)), "la.png")) == (expected,) * 3


def test_transparent_colour_of_rgb(tmp_path):
    path = saved(tmp_path, Image.new("RGB", (2, 2), RED), "key.png", transparency=RED)
    assert pixel(path) == (255, 255, 255)


@pytest.mark.parametrize("value", [0, 257, 30_000, 60_000, 65_535])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, value):
    grey = Image.fromarray(np.full((3, 3), value, dtype=np.uint16))
    for name in ("deep.png", "deep.tif"):
        assert pixel(saved(tmp_path, grey, name)) == (round(value / 257),) * 3


def test_float_tiff(tmp_path):
    unit = Image.fromarray(np.full((2, 2), 0.2, dtype=np.float32))
    assert pixel(saved(tmp_path, unit, "unit.tif")) == (51, 51, 51)
    wide = Image.fromarray(np.array([[300.0, 7.0], [np.nan, -4.0]], dtype=np.float32))
    path = saved(tmp_path, wide, "wide.tif")
    assert [pixel(path, place)[0] for place in ((0, 0), (1, 0), (0, 1), (1, 1))] == [255, 7, 0, 0]


def test_cmyk_jpeg_and_bilevel(tmp_path):
    cyan = saved(tmp_path, Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "c.jpg", quality=95)
    red, green, blue = pixel(cyan)
    assert red < 20 and green > 235 and blue > 235
    assert pixel(saved(tmp_path, Image.new("1", (3, 3), 1), "one.png")) == (255, 255, 255)


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, (0, 0, 255))]
    for name in ("a.gif", "a.webp", "a.png"):
        options = {"save_all": True, "append_images": frames[1:], "duration": 50}
        if name.endswith("webp"):
            options["lossless"] = True
        path = saved(tmp_path, frames[0], name, **options)
        assert np.abs(np.subtract(pixel(path), RED)).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    upright = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
    # how a camera stores an upright scene under each orientation: the inverse of what a viewer does
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(np.ascontiguousarray(stored)), "turned.png", exif=exif)
    assert np.array_equal(np.asarray(open_image(path)), upright)


def test_a_damaged_exif_block_does_not_spoil_the_pixels(tmp_path):
    path = saved(
        tmp_path, Image.new("RGB", (8, 8), RED), "x.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff"
    )
    assert np.abs(np.subtract(pixel(path), RED)).max() <= 6


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_heic_photograph_is_read_upright(tmp_path, orientation):
    heif = pytest.importorskip("pillow_heif", reason="the extra `heic` is not installed")
    upright = np.zeros((64, 96, 3), dtype=np.uint8)
    upright[:32, :48], upright[32:, 48:] = (240, 30, 30), (30, 30, 240)
    stored = np.rot90(upright, 1) if orientation == 6 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.heic"
    heif.from_pillow(Image.fromarray(np.ascontiguousarray(stored))).save(
        path, quality=95, exif=exif.tobytes()
    )
    assert is_heic(head_of(path)) and looks_like_image(path)
    read = np.asarray(open_image(path), dtype=int)
    assert read.shape == upright.shape and np.abs(read - upright).mean() < 4
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match="cannot read image"):
        open_image(path)


def bomb() -> bytes:
    """A PNG header that claims 60,000 × 60,000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


def jpeg() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"<html>not found</html>", "no known image format"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", HEIC),
        (jpeg()[:900], "truncated"),
        (bomb(), "pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known image format"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, why):
    path = tmp_path / "bad.jpg"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_image(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read image {path}: ") and why in message and "\n" not in message


def test_a_line_is_refused(tmp_path):
    path = saved(tmp_path, Image.new("1", (1, 20_000)), "line.png")
    with pytest.raises(InputError, match=r"line.png: 1 × 20000 pixels: .* 200-fold") as error:
        open_image(path)
    assert len(str(error.value).splitlines()) == 1
    assert open_image(saved(tmp_path, Image.new("1", (200, 1)), "thin.png")).size == (200, 1)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_image(tmp_path / "none.png")
    with pytest.raises(InputError, match="it is a folder: give one image file"):
        open_image(tmp_path)


def test_a_stream_is_read_and_named():
    assert open_image(io.BytesIO(jpeg())).size == (64, 64)
    with pytest.raises(InputError, match="cannot read image upload"):
        open_image(io.BytesIO(b"nonsense"))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_flipped_byte_never_escapes_as_another_error(place, value):
    content = bytearray(jpeg())
    content[place % len(content)] = value
    try:
        assert open_image(io.BytesIO(bytes(content))).mode == "RGB"
    except InputError as error:
        assert "\n" not in str(error)


def test_draft_is_smaller_but_never_below_the_asked_size(tmp_path):
    path = saved(tmp_path, Image.new("RGB", (1600, 1200), RED), "big.jpg")
    assert open_image(path).size == (1600, 1200)
    width, height = open_image(path, draft=200).size
    assert 200 <= height < 1200 and 200 <= width < 1600


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_looks_like_image(tmp_path, form):
    path = saved(tmp_path, Image.new("RGB", (4, 4), RED), "without-suffix", format=form)
    assert looks_like_image(path)


@pytest.mark.parametrize(
    "content", [b"", b"P", b"Price,label\n", b"BMW is a car maker", b"RIFF....WAVE", b"{}"]
)
def test_other_files_do_not(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert not looks_like_image(path)
    assert not looks_like_image(tmp_path / "none")


@pytest.mark.parametrize(
    ("width", "height", "depth", "kind", "why"),
    [
        (1, 170_000_000, 16, 6, "its sides may differ"),
        (13_000, 13_000, 16, 6, r"13000 × 13000 pixels of RGBA take 2\.5 GiB to decode"),
        (13_000, 13_000, 16, 0, "GiB to decode"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_small_file_of_many_pixels_is_refused_by_its_header(monkeypatch, width, height, depth, kind, why):
    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    file = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    record = Record("bomb.png", file)
    with pytest.raises(InputError, match=why):
        open_image(io.BytesIO(file))
    (found,) = Decoder(1).decode([record], Crop(8))  # in a thread of the command line
    assert isinstance(found, InputError) and "cannot read image bomb.png" in str(found)


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    Image.new("L", (64, 64), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    scans = data[last:-2]
    (tmp_path / "a.jpg").write_bytes(data[:last] + scans * 20 + data[-2:])
    assert open_image(tmp_path / "a.jpg").size == (64, 64)
    monkeypatch.setattr("pbprompt.vision.images.images.MOST_SCANNED", 64 * 64 * 1000)
    (tmp_path / "b.jpg").write_bytes(data[:last] + scans * 1000 + data[-2:])
    monkeypatch.setattr(Image.Image, "load", lambda image: 1 / 0)
    with pytest.raises(InputError, match=r"b\.jpg: 1,005 scans of 64 × 64 pixels take too long"):
        open_image(tmp_path / "b.jpg", draft=8)


def jpeg_of(size=(32, 32), **options) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, "JPEG", **options)
    return buffer.getvalue()


EXIF = b"\xff\xe1\xff\xf0Exif\x00\x00" + bytes(0xFFF0 - 8)  # which Pillow joins, each to all before
RESOURCES = b"\xff\xed\xff\xf8Photoshop 3.0\x00" + b"8BIM\x04\x04\x00\x00\x00\x00\x00\x00" * 5460
FRAME = b"\xff\xc0\xff\xf8\x08\x00\x20\x00\x20\x03" + b"\x01\x11\x00" * 21_840
TABLES = b"\xff\xdb\xfd\xea" + (b"\x00" + b"\x01" * 64) * 1000


@pytest.mark.parametrize(
    "filling",
    [b"\xff" * 300_000, b"\xff\xfe\x00\x02" * 150_000, b"\x00" * 300_000]
    + [segment * 25 for segment in (EXIF, RESOURCES, FRAME, TABLES)],
)
def test_a_header_of_very_many_parts_is_refused(filling):
    data, comment = jpeg_of(), b"\xff\xfe\x00\x02"
    assert open_image(io.BytesIO(data[:2] + comment + b"\xff" * 50 + data[2:])).size == (32, 32)
    with pytest.raises(InputError, match="its header has over 100,000 parts"):
        open_image(io.BytesIO(data[:2] + comment + filling + data[2:]))


def test_long_comments_and_large_profiles_are_no_parts():
    data, comment = jpeg_of(), b"\xff\xfe\xff\xff" + bytes(65_533)
    assert open_image(io.BytesIO(data[:2] + EXIF + comment * 100 + data[2:])).size == (32, 32)


@pytest.mark.parametrize("progressive", [False, True])
def test_fill_bytes_behind_the_pixels_are_refused_before_they_are_gone_through(monkeypatch, progressive):
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG", progressive=progressive)
    data = buffer.getvalue()
    assert open_image(io.BytesIO(data[:-2] + b"\xff" * 200_000 + data[-2:])).size == (64, 64)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(InputError, match="of filling take too long"):
        open_image(io.BytesIO(data[:-2] + b"\xff" * (2 * images.FILLING) + data[-2:]))


@pytest.mark.parametrize(("kind", "times"), [(b"teXt", 100_001), (b"iCCP", 11)])
def test_a_png_of_very_many_chunks_is_refused(kind, times):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    data = buffer.getvalue()
    content = b"x\x00\x00" + zlib.compress(b"")
    chunk = struct.pack(">I", len(content)) + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
    assert open_image(io.BytesIO(data[:33] + chunk * (times // 11) + data[33:])).size == (8, 8)
    with pytest.raises(InputError, match="its header has over 100,000 parts"):
        open_image(io.BytesIO(data[:33] + chunk * times + data[33:]))


def test_entries_of_exif_that_overlap_are_not_read(monkeypatch):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for padding, size in ((b"", (4, 8)), (bytes(1 << 16), (8, 4))):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 4)).save(buffer, "PNG", exif=exif.tobytes() + padding)
        assert open_image(io.BytesIO(buffer.getvalue())).size == size


@pytest.mark.parametrize(
    ("room", "at_once", "options"),
    [
        (4 * 300 * 300, 1, {}),
        (2.5 * 4 * 300 * 300, 2, {}),
        (2.5 * 4 * 300 * 300, 1, {"progressive": True}),  # its coefficients take six bytes a pixel more
        (2.5 * 10 * 300 * 300, 2, {"progressive": True}),
    ],
)
def test_all_threads_have_one_budget_of_memory(monkeypatch, room, at_once, options):
    now, most = [], []

    def slowly(image):
        now.append(1)
        most.append(len(now))
        time.sleep(0.02)
        now.pop()
        return image

    data = jpeg_of((300, 300), **options)
    monkeypatch.setattr(images, "MOST_MEMORY", room)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: open_image(io.BytesIO(data), finish=slowly), range(8)))
    assert max(most) == at_once
    with pytest.raises(ZeroDivisionError):
        open_image(io.BytesIO(data), finish=lambda image: 1 / 0)
    assert images._held == [0]  # whatever happened, it is given back


def test_a_webp_counts_for_the_copies_that_its_decoder_makes():
    head = b"RIFF\x16\x00\x00\x00WEBPVP8L\x0a\x00\x00\x00\x2f"
    bits = (13_300 - 1) | (13_300 - 1) << 14
    with pytest.raises(InputError, match="allowed: make it smaller"):
        open_image(io.BytesIO(head + bits.to_bytes(4, "little") + bytes(5)))


def test_what_libjpeg_holds_of_a_progressive_jpeg_counts_however_small_it_is_drawn(monkeypatch):
    data = jpeg_of((400, 400), progressive=True)
    monkeypatch.setattr(images, "MOST_MEMORY", 7 * 400 * 400)
    assert open_image(io.BytesIO(data), draft=50).size == (50, 50)
    monkeypatch.setattr(images, "MOST_MEMORY", 5 * 400 * 400)
    with pytest.raises(InputError, match="allowed: make it smaller"):
        open_image(io.BytesIO(data), draft=50)
    assert open_image(io.BytesIO(jpeg_of((400, 400))), draft=50).size == (50, 50)


def test_a_small_file_takes_no_memory_for_the_most_that_is_read(tmp_path):
    (tmp_path / "small.jpg").write_bytes(b"small")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "small.jpg", 1 << 30) == b"small"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(InputError, match="larger than 0 MiB"):
        read_file(tmp_path / "small.jpg", 4)
