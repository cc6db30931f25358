"""From a client's bytes to an image: nothing is decoded before its type and size are known."""

import io
import warnings

from PIL import Image, UnidentifiedImageError

from pbprompt.apps.serve.limits import Limits, Refused, too_large
from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Cropper
from pbprompt.vision.images.images import check_header, open_image, small_jpeg

TYPES = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


def decode_image(data: bytes, limits: Limits, cropper: Cropper | None = None) -> Image.Image:
    """An upright RGB image, or a refusal: the content decides, no name or declared type.

    With `cropper`, the part of it that the tower sees.
    """
    if not data:
        raise Refused(400, "the image is empty")
    if len(data) > limits.image_bytes:
        raise too_large(limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged metadata of others is no news of ours
        _check_header(data, limits)
        try:
            image = open_image(io.BytesIO(data))
        except InputError as error:
            why = str(error).removeprefix("cannot read image upload: ")
            raise Refused(422, f"the image cannot be used: {why}") from None
    return cropper(image, "") if cropper else image


def shown_jpeg(path: str, side: int) -> bytes:
    """An image file of any type, small enough to look at."""
    try:
        return small_jpeg(path, side, quality=90)
    except InputError:
        raise Refused(422, "the image cannot be read any more") from None


def _check_header(data: bytes, limits: Limits) -> None:
    """Refuse what is, as the header says, of no allowed type or of too many pixels."""
    too_many = Refused(413, f"the image has more than {limits.image_pixels:,} pixels")
    try:
        check_header(io.BytesIO(data))
        with Image.open(io.BytesIO(data), formats=TYPES) as image:
            width, height = image.size
    except UnidentifiedImageError:
        allowed = ", ".join(TYPES)
        raise Refused(415, f"the content is no image of these types: {allowed}") from None
    except InputError as error:
        raise Refused(422, f"the image cannot be used: {error}") from None
    except Image.DecompressionBombError:
        raise too_many from None
    except Exception:  # damaged headers make Pillow raise nearly anything
        raise Refused(422, "the image is damaged: its header cannot be read") from None
    if width < 1 or height < 1:
        raise Refused(422, "the image is damaged: it has no pixels")
    if width * height > limits.image_pixels:
        raise too_many
