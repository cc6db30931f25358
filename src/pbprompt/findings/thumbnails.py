"""Small pictures inside a page, as data URIs."""

import base64
import io
from pathlib import Path

from PIL import Image

from pbprompt.data.images import open_image
from pbprompt.errors import InputError

LONGEST_SIDE = 144  # twice the size it is shown at, for dense screens


def data_uri(file: Path) -> str | None:
    """The image as a small JPEG; None where it can no longer be read."""
    try:
        image = open_image(file, draft=LONGEST_SIDE)
    except InputError:
        return None
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
