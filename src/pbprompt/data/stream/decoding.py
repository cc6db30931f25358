"""Image files to the squares that a tower sees, in processes that a hostile file may keep busy or bring down.

Without torch, so that these processes start quickly and stay small.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pbprompt.data.images import open_image
from pbprompt.data.square import Fit, Interpolation, square_of
from pbprompt.data.stream.records import Record
from pbprompt.data.workers import Workers
from pbprompt.errors import InputError

SECONDS = 30.0  # for the images of one question
MEMORY = 4 << 30  # of one process: an image of the most pixels that Pillow opens, and its copies

Geometry = tuple[int, Fit, Interpolation, int | None]  # what `square_of` takes
Square = NDArray[np.uint8]  # [size, size, 3]


class SquareDecoders(Workers):
    """Processes that decode records; ask from as many threads."""

    def __init__(self, count: int) -> None:
        super().__init__(count, memory=MEMORY, seconds=SECONDS, prepare=__name__)

    def decode(self, records: Sequence[Record], geometry: Geometry) -> list[Square | InputError]:
        """The square of each image, or why it has none."""
        contents = [_content(record) for record in records]
        try:
            return self.ask(squares, [record.name for record in records], contents, geometry)
        except (TimeoutError, EOFError) as error:
            if len(records) > 1:  # one of them is to blame, and the others are innocent
                return [self.decode([record], geometry)[0] for record in records]
            late = isinstance(error, TimeoutError)
            why = f"decoding took over {SECONDS:g} seconds" if late else "its decoder broke down"
            return [InputError(f"cannot read image {records[0].name}: {why}")]


def _content(record: Record) -> bytes | Path | InputError:
    """A file here is read by the process that decodes it."""
    try:
        return record.content if isinstance(record.content, Path) else record.read()
    except InputError as error:
        return error


def squares(
    names: Sequence[str], contents: Sequence[bytes | Path | InputError], geometry: Geometry
) -> list[Square | InputError]:
    """Run in the processes."""
    return [_square(*one, geometry) for one in zip(names, contents, strict=True)]


def _square(name: str, content: bytes | Path | InputError, geometry: Geometry) -> Square | InputError:
    if isinstance(content, InputError):
        return content
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata
            image = open_image(io.BytesIO(content) if isinstance(content, bytes) else content)
            return np.asarray(square_of(image, *geometry))
    except InputError as error:
        return InputError(str(error).replace("cannot read image upload:", f"cannot read image {name}:"))
