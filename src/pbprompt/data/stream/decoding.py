"""Image files to the squares that a tower sees, in processes that a hostile file may keep busy or bring down.

Without torch, so that these processes start quickly and stay small.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from queue import LifoQueue

import numpy as np
from numpy.typing import NDArray

from pbprompt.data.images import open_image
from pbprompt.data.square import Fit, Interpolation, square_of
from pbprompt.data.stream.records import Record
from pbprompt.data.stream.shared import Shared, nameless_file
from pbprompt.data.workers import AVAILABLE, Workers
from pbprompt.errors import InputError

SECONDS = 30.0  # for the images of one question
MEMORY = 4 << 30  # of one process: an image of the most pixels that Pillow opens, and its copies

Geometry = tuple[int, Fit, Interpolation, int | None]  # what `square_of` takes
Square = NDArray[np.uint8]  # [size, size, 3]


class SquareDecoders(Workers):
    """Processes that decode records; ask from more threads than there are, so that none waits for work.

    Squares come back in memory that both sides see: through the line each would be copied five times, most
    of that under the interpreter's lock.
    """

    def __init__(self, count: int) -> None:
        self._places = [Shared(nameless_file()) for _ in range(2 * count)] if AVAILABLE else []
        self._free: LifoQueue[Shared] = LifoQueue()
        for place in self._places:
            self._free.put(place)
        handles = [place.handle for place in self._places]
        super().__init__(count, memory=MEMORY, seconds=SECONDS, prepare=__name__, handles=handles)

    def decode(self, records: Sequence[Record], geometry: Geometry) -> list[Square | InputError]:
        """The square of each image, or why it has none."""
        try:
            return self._decode(records, geometry)
        except (TimeoutError, EOFError) as error:
            if len(records) > 1:  # one of them is to blame, and the others are innocent
                return [self.decode([record], geometry)[0] for record in records]
            late = isinstance(error, TimeoutError)
            why = f"decoding took over {SECONDS:g} seconds" if late else "its decoder broke down"
            return [InputError(f"cannot read image {records[0].name}: {why}")]

    def _decode(self, records: Sequence[Record], geometry: Geometry) -> list[Square | InputError]:
        names, contents = [record.name for record in records], [_content(record) for record in records]
        if not AVAILABLE:
            return squares(names, contents, geometry)
        place = self._free.get()
        try:
            room = _room(place, len(records), geometry)
            failures = self.ask(squares_into, names, contents, geometry, place.handle)
            found = room.copy()  # the next question will be answered there
        finally:
            self._free.put(place)
        return [failures.get(at, square) for at, square in enumerate(found)]

    def close(self) -> None:
        """End all, whatever they do."""
        super().close()
        while self._places:
            self._places.pop().close()


def _room(place: Shared, images: int, geometry: Geometry) -> NDArray[np.uint8]:
    """[images, size, size, 3]."""
    size = geometry[0]
    return place.array(images * size * size * 3).reshape(images, size, size, 3)


def _content(record: Record) -> bytes | Path | InputError:
    """A file here is read by the process that decodes it."""
    try:
        return record.content if isinstance(record.content, Path) else record.read()
    except InputError as error:
        return error


_seen: dict[int, Shared] = {}  # by handle, in the processes, where a handle stays what it is


def squares_into(
    names: Sequence[str], contents: Sequence[bytes | Path | InputError], geometry: Geometry, handle: int
) -> dict[int, InputError]:
    """Run in the processes: squares go into the memory behind the handle, and back go those without one."""
    room = _room(_seen.setdefault(handle, Shared(handle)), len(names), geometry)
    failures = {}
    for at, one in enumerate(squares(names, contents, geometry)):
        if isinstance(one, InputError):
            failures[at] = one
        else:
            room[at] = one
    return failures


def squares(
    names: Sequence[str], contents: Sequence[bytes | Path | InputError], geometry: Geometry
) -> list[Square | InputError]:
    """The square of each, or why it has none."""
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
