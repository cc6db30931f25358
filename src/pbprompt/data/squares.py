"""What decoding processes run: image files to the bytes of squares.

Without numpy and torch, so that these processes start quickly and stay small.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pbprompt.data.images import open_image
from pbprompt.data.shared import Shared
from pbprompt.data.square import Fit, Interpolation, square_of
from pbprompt.errors import InputError

Content = bytes | Path | InputError  # of an image file, or why there is none
Geometry = tuple[int, Fit, Interpolation, int | None]  # what `square_of` takes

_seen: dict[int, Shared] = {}  # by handle, in the processes, where a handle stays what it is


def squares(
    names: Sequence[str], contents: Sequence[Content], geometry: Geometry
) -> Iterator[bytes | InputError]:
    """The pixels of each square, or why it has none."""
    return (_square(name, content, geometry) for name, content in zip(names, contents, strict=True))


def squares_into(
    names: Sequence[str], contents: Sequence[Content], geometry: Geometry, handle: int
) -> dict[int, InputError]:
    """Put squares into the memory behind the handle, one after another; those without one are told."""
    size = geometry[0] * geometry[0] * 3
    memory = _seen.setdefault(handle, Shared(handle)).memory(len(names) * size)
    failures = {}
    for place, one in enumerate(squares(names, contents, geometry)):
        if isinstance(one, InputError):
            failures[place] = one
        else:
            memory[place * size : (place + 1) * size] = one
    return failures


def _square(name: str, content: Content, geometry: Geometry) -> bytes | InputError:
    if isinstance(content, InputError):
        return content
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata
            image = open_image(io.BytesIO(content) if isinstance(content, bytes) else content)
            return square_of(image, *geometry).tobytes()
    except InputError as error:
        return InputError(str(error).replace("cannot read image upload:", f"cannot read image {name}:"))
