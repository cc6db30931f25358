"""Opening image files, whatever their suffix says, as upright 8-bit RGB."""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pbprompt.errors import InputError, first_line
from pbprompt.files import is_special

# A hint for listing folders; what a file is, its first bytes decide.
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".avif", ".jp2", ".heic", ".heif"}
)
# Raster formats only: Pillow hands some others (EPS) to outside programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "MPO", "AVIF", "JPEG2000", "HEIF")
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_JP2 = (b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")  # JPEG 2000
_MAGIC = (_JPEG, _PNG, *_JP2, b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")  # what telephones write; Pillow cannot
MOST_ASPECT = 200  # the centre of a longer line shows next to nothing
MOST_MEMORY = 2 << 30  # bytes that images and their copies may take at once, as their headers tell
MOST_SCANNED = 2_000_000_000  # pixels times scans of a JPEG, some 3 s; the largest photographs have ten scans
MOST_STEPS = 100_000  # of a JPEG's or PNG's header
ENTRY_BYTES, PROFILE_STEPS = 12, 10_000  # what is a step within a list, and how many a profile of colours is
FILLING = 1 << 18  # bytes of a JPEG that are read at once; no camera fills so many with 0xFF
MOST_EXIF = 1 << 16  # bytes; a camera's fit into one segment of a JPEG
_WITHOUT_LENGTH = [bytes([code]) for code in (0, 1, 0xFF, *range(0xD0, 0xDA))]  # markers of a JPEG
_LISTS = [bytes([code]) for code in (*range(0xC0, 0xD0), 0xDB, 0xED)]  # gone through in Python
HEIC = "HEIC, which the extra `heic` reads (or convert it to JPEG)"
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}


@cache
def _formats() -> list[str]:
    """The formats this build of Pillow can open, with the extra `heic` those of telephones too."""
    Image.init()
    with contextlib.suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return [name for name in _FORMATS if name in Image.OPEN]


_done = threading.Condition()  # a thread has decoded its image
_held = [0]  # bytes that images take which are decoded now


@contextlib.contextmanager
def _room_for(size: int) -> Iterator[None]:
    """So many of the bytes that all threads of the process have together, once they are free."""
    with _done:
        _done.wait_for(lambda: _held[0] + size <= MOST_MEMORY)
        _held[0] += size
    try:
        yield
    finally:
        with _done:
            _held[0] -= size
            _done.notify_all()


@contextlib.contextmanager
def opened(file: BinaryIO) -> Iterator[Image.Image]:
    """An image of which the header alone is read, in bounded time."""
    check_header(file)
    with Image.open(file, formats=_formats()) as image:
        yield image


def open_image(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    draft: int | None = None,
    finish: Callable[[Image.Image], Image.Image] = lambda image: image,
) -> Image.Image:
    """The image as RGB: first frame, EXIF orientation applied, transparency laid on white; then `finish` of
    it, before another large one is decoded.

    `source` is a path or an open binary stream. `draft` lets JPEG decode straight to a smaller size whose
    sides are all at least `draft` pixels. That is several times faster on large photographs but only
    approximate: the decoder's own reduction comes before the bicubic one, so pixels differ slightly.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else getattr(source, "name", "upload")
    if isinstance(source, str | os.PathLike) and is_special(source):
        raise InputError(f"cannot read image {name}: a pipe, socket or device, no regular file")
    with contextlib.ExitStack() as held:
        try:
            file: Any = source
            if isinstance(source, str | os.PathLike):
                file = held.enter_context(Path(source).open("rb"))
            image = held.enter_context(opened(file))
            _check_shape(image)  # by its header: a file of a few bytes may hold gigabytes
            coefficients = _check_scans(image)
            if draft is not None:
                image.draft(None, (draft, draft))
            held.enter_context(_room_for(_memory(image, coefficients)))
            image.load()
            upright = upright_rgb(image)
        except Exception as error:  # damaged files make Pillow's decoders raise nearly anything
            raise InputError(f"cannot read image {name}: {_why(error, source)}") from None
        return finish(upright)


def small_jpeg(source: str | os.PathLike[str], side: int, quality: int) -> bytes:
    """An image file of any type as a JPEG of at most that many pixels a side."""
    image = open_image(source, draft=side)
    image.thumbnail((side, side))
    return encoded_image(image, "JPEG", quality=quality)


def encoded_image(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _why(error: Exception, source: str | os.PathLike[str] | BinaryIO) -> str:
    match error:
        case UnidentifiedImageError():
            head = head_of(source)
            known = HEIC if is_heic(head) else "its content is no known image format"
            return known if head else "the file is empty"
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "it is a folder: give one image file"
        case Image.DecompressionBombError():
            return f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    return first_line(error)


def upright_rgb(image: Image.Image) -> Image.Image:
    """An image as the transforms take it: turned as its EXIF says, in RGB; no mere line."""
    _check_shape(image)
    with contextlib.suppress(Exception):  # a damaged EXIF block does not spoil the pixels
        small = len(image.info.get("exif", b"")) <= MOST_EXIF  # whose entries may overlap, each a copy
        if small and image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # else Pillow would only copy it
            image = ImageOps.exif_transpose(image)
    if _is_deep(image):
        return _from_deep(image).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_shape(image: Image.Image) -> None:
    if max(image.size) > MOST_ASPECT * min(image.size):
        width, height = image.size
        raise InputError(f"{width} × {height} pixels: its sides may differ {MOST_ASPECT}-fold at most")


def _check_scans(image: Image.Image) -> int:
    """The bytes of the coefficients that libjpeg holds of all pixels, however small it draws them, where a
    JPEG has several scans.

    A scan of ten bytes costs a pass over all pixels; within entropy-coded data no marker occurs. Fill bytes
    are gone through anew with each block that is read, as long as nothing else comes.
    """
    file = getattr(image, "fp", None)
    if file is None or not (image.format in ("JPEG", "MPO") or image.info.get("compression") == "jpeg"):
        return 0
    place, scans, last = file.tell(), 0, b""
    file.seek(0)
    while chunk := file.read(FILLING):
        if len(chunk) == FILLING and not chunk.strip(b"\xff"):
            raise InputError(f"over {FILLING:,} bytes of filling take too long: save it anew")
        scans += (last + chunk).count(b"\xff\xda")
        last = chunk[-1:]
    file.seek(place)
    width, height = image.size
    if scans * max(width * height, 1024) > MOST_SCANNED:
        raise InputError(f"{scans:,} scans of {width} × {height} pixels take too long: save it anew")
    return 2 * len(image.getbands()) * width * height if scans > 1 or image.info.get("progressive") else 0


def check_header(file: BinaryIO) -> None:
    """Pillow goes through the header of a JPEG byte by byte, through its lists by entries, and through a
    PNG by chunks, however many there are: refuse more than any camera or program writes."""
    file.seek(0)
    head, steps = file.read(8), 0
    if head == _PNG:
        while len(chunk := file.read(8)) == 8 and chunk[4:] != b"IEND" and steps <= MOST_STEPS:
            file.seek(int.from_bytes(chunk[:4], "big") + 4, os.SEEK_CUR)
            steps += PROFILE_STEPS if chunk[4:] == b"iCCP" else 1  # unpacked, each time anew
    elif head.startswith(_JPEG):
        file.seek(2)
        byte = file.read(1)
        while byte and steps <= MOST_STEPS:
            steps += 1
            last, byte = byte, file.read(1)
            if last != b"\xff" or byte in _WITHOUT_LENGTH:
                continue
            if byte == b"\xda":  # the pixels
                break
            length, begin = max(0, int.from_bytes(file.read(2), "big") - 2), file.tell()
            exif = byte == b"\xe1" and file.read(6) == b"Exif\0\0"  # joined, each to the last
            if byte in _LISTS or exif:
                steps += length // ENTRY_BYTES
            file.seek(begin + length)
            byte = file.read(1)
    file.seek(0)
    if steps > MOST_STEPS:
        raise InputError(f"its header has over {MOST_STEPS:,} parts: save it anew")


def _memory(image: Image.Image, coefficients: int = 0) -> int:
    """The bytes that it takes, refused where they are too many: Pillow holds RGB in four bytes a pixel, and
    libwebp several copies; see `upright_rgb` for ours."""
    width, height = image.size
    costly = _is_deep(image) or image.has_transparency_data or image.format == "WEBP"
    needed = width * height * (16 if costly else 4 if image.mode == "RGB" else 8) + coefficients
    if needed > MOST_MEMORY:
        raise InputError(
            f"{width} × {height} pixels of {image.mode} take {needed / 2**30:.1f} GiB to decode, over the "
            f"{MOST_MEMORY >> 30} GiB allowed: make it smaller"
        )
    return needed


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _from_deep(image: Image.Image) -> Image.Image:
    """Grey of more than 8 bits to 8: integers are 16-bit (65535 is white), floats run to 1 or to 255."""
    import numpy as np  # few images need it, and to load it is most of what a decoding process waits for

    values = np.nan_to_num(np.asarray(image).astype(np.float64), copy=False)  # in place: it may be large
    if image.mode != "F":
        values /= 257.0
    elif values.max(initial=0.0) <= 1.0:
        values *= 255.0
    np.rint(values, out=values)
    return Image.fromarray(np.clip(values, 0, 255, out=values).astype(np.uint8))


def decodes_quickly(head: bytes) -> bool:
    """Whether a file that begins so takes time by its pixels and scans alone, which are bounded.

    Pillow's decoders of other formats may take minutes over a few bytes of somebody's making.
    """
    return head.startswith((_JPEG, _PNG[:4], b"RIFF"))


def looks_like_image(path: str | os.PathLike[str]) -> bool:
    """Whether the file's first bytes are those of a format `open_image` reads."""
    head = head_of(path)
    if head.startswith(_MAGIC):
        return True
    if head[:4] == b"RIFF":
        return head[8:12] == b"WEBP"
    if head[4:8] == b"ftyp":
        return head[8:12] in (b"avif", b"avis") or ("HEIF" in _formats() and is_heic(head))
    if head[:2] == b"BM":
        return int.from_bytes(head[14:18], "little") in _BMP_HEADERS
    return len(head) > 2 and head[:1] == b"P" and head[1:2] in b"123456" and head[2:3] in b" \t\r\n#"


def read_file(path: Path, most: int, name: str = "") -> bytes:
    """The bytes of an image's file, so many at most, not looked at."""
    why: object = "a pipe, socket or device, no regular file"
    try:
        if not is_special(path):
            with path.open("rb") as file:
                # read(most + 1) would take memory for that many bytes, whatever there is to read
                if os.fstat(file.fileno()).st_size <= most and len(content := file.read()) <= most:
                    return content
            why = f"the file is larger than {most >> 20} MiB"
    except FileNotFoundError:
        why = "no such file"
    except OSError as error:
        why = error.strerror or error
    raise InputError(f"cannot read image {name or path}: {why}")


def is_heic(head: bytes) -> bool:
    """Whether a file that begins so is a HEIC photograph, read with an extra alone."""
    return head[4:8] == b"ftyp" and any(head[at : at + 4] in _HEIC for at in range(8, len(head), 4))


def head_of(path: str | os.PathLike[str] | BinaryIO) -> bytes:
    """A file's first bytes; none of what is no file or cannot be read."""
    if not isinstance(path, str | os.PathLike):
        path.seek(0)
        return path.read(32)
    if is_special(path):
        return b""
    try:
        with Path(path).open("rb") as file:
            return file.read(32)
    except OSError:
        return b""
