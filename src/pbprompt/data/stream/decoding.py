"""Image files to squares for a tower, in processes that a hostile file may keep busy or bring down."""

from collections.abc import Sequence
from pathlib import Path
from queue import LifoQueue

import numpy as np
from numpy.typing import NDArray

from pbprompt.data import squares
from pbprompt.data.shared import Shared, nameless_file
from pbprompt.data.squares import Content, Geometry
from pbprompt.data.stream.records import Record
from pbprompt.data.workers import AVAILABLE, Workers
from pbprompt.errors import InputError

SECONDS = 30.0  # for the images of one question
MEMORY = 4 << 30  # of one process: an image of the most pixels that Pillow opens, and its copies

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
        super().__init__(count, memory=MEMORY, seconds=SECONDS, prepare=squares.__name__, handles=handles)

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
        size = geometry[0]
        shape = (len(records), size, size, 3)
        if not AVAILABLE:
            made = squares.squares(names, contents, geometry)
            return [one if isinstance(one, InputError) else _array(one, shape[1:]) for one in made]
        place = self._free.get()
        try:
            memory = place.memory(len(records) * size * size * 3)
            failures = self.ask(squares.squares_into, names, contents, geometry, place.handle)
            found = _array(memory, shape).copy()  # the next question will be answered there
        finally:
            self._free.put(place)
        return [failures.get(at, square) for at, square in enumerate(found)]

    def close(self) -> None:
        """End all, whatever they do."""
        super().close()
        while self._places:
            self._places.pop().close()


def _array(memory: bytes | memoryview, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8).reshape(shape)


def _content(record: Record) -> Content:
    """A file here is read by the process that decodes it."""
    try:
        return record.content if isinstance(record.content, Path) else record.read()
    except InputError as error:
        return error
