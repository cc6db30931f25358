"""The one decoder: images of any source to squares, some ahead of whoever takes them, in bounded memory.

In threads, since Pillow decodes and resizes outside the interpreter's lock, so that a few keep as many
processors busy. Or in processes: for many processors, for images of anybody's making, and for formats whose
decoders a hostile file may keep busy or bring down, since nobody can end a thread.
"""

import atexit
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from pbprompt.errors import InputError
from pbprompt.vision.images import crops
from pbprompt.vision.images.crops import Content, Crop, Cropper, Hashed, Shared, nameless_file, square_of
from pbprompt.vision.images.images import decodes_quickly, head_of
from pbprompt.vision.images.records import Record
from pbprompt.vision.images.workers import AVAILABLE, Workers, available_cpus

SECONDS = 30.0  # for the images of one question to a process
MEMORY = 4 << 30  # of one process: an image of the most pixels that Pillow opens, and its copies
QUESTION = 8  # images that a process is asked for at once
WEIGHT = 16 << 20  # bytes of images that count for a question
READERS = 8  # threads beside one a process: they wait for files, which may come from far away
MANY_PROCESSORS, MOST_PROCESSES = 8, 16  # from where on processes decode faster than threads beside a GPU
MANY_IMAGES = 10_000  # that pay for starting them

Square = NDArray[np.uint8]  # [size, size, 3]
Squares = list[Square | InputError]
Mark = TypeVar("Mark")
One = TypeVar("One")


class Decoder:
    """Makes squares of records' images: in `count` processes, or else in as many threads of this program."""

    def __init__(self, count: int, *, processes: bool = False) -> None:
        self.processes = processes and AVAILABLE
        self.askers = count + READERS if processes else count  # more than there are processes: none waits
        self.question = QUESTION if processes else 1
        self.ahead = 2 * self.askers if processes else 4 * count  # questions that may wait for the taker
        # Squares come back in memory that both sides see: through the line each would be copied five times,
        # most of that under the interpreter's lock.
        self._shared = [Shared(nameless_file()) for _ in range(2 * count)] if self.processes else []
        self._free: LifoQueue[Shared] = LifoQueue()
        for memory in self._shared:
            self._free.put(memory)
        self.workers = Workers(
            count, MEMORY, SECONDS, prepare=crops.__name__, handles=[one.handle for one in self._shared]
        )

    def decode(self, records: Sequence[Record], cropper: Cropper) -> Squares:
        """The square of each image, or why it has none."""
        if not self.processes:
            return [self._one(record, _content(record), cropper) for record in records]
        try:
            return self._decoded_apart(records, cropper)
        except (TimeoutError, EOFError) as error:
            if len(records) > 1:  # one of them is to blame, and the others are innocent
                return [self.decode([record], cropper)[0] for record in records]
            late = isinstance(error, TimeoutError)
            if not late:  # the system may have killed the process, whatever the image
                with contextlib.suppress(TimeoutError, EOFError):
                    return self._decoded_apart(records, cropper)
            why = f"decoding took over {SECONDS:g} seconds" if late else "its decoder broke down"
            return [InputError(f"cannot read image {records[0].name}: {why}")]

    def _one(self, record: Record, content: Content, cropper: Cropper) -> Square | InputError:
        """In this thread where that is soon done; what may take for ever, in a process that can be ended."""
        file = content.path if isinstance(content, Hashed) else content
        head = file[:32] if isinstance(file, bytes) else isinstance(file, Path) and head_of(file)
        if not head or decodes_quickly(head) or not AVAILABLE:
            square = square_of(record.name, content, cropper)
            return square if isinstance(square, InputError) else finished(np.array(square), cropper)
        processes = shared_processes(min(available_cpus(), MOST_PROCESSES))
        return processes.decode([replace(record, content=content)], cropper)[0]

    def _decoded_apart(self, records: Sequence[Record], cropper: Cropper) -> Squares:
        names, contents = [record.name for record in records], [_content(record) for record in records]
        found, end = Squares(), 0
        shared = self._free.get()
        try:
            answers = self.workers.ask(crops.squares_into, shared.handle, names, contents, cropper)
            for answer in answers:
                if isinstance(answer, InputError):
                    found.append(answer)
                    continue
                (width, height), begin = answer, end
                end += 3 * width * height
                pixels = np.frombuffer(shared.memory(end)[begin:], np.uint8).reshape(height, width, 3)
                found.append(finished(pixels, cropper))  # in other memory: the next answer goes here
        finally:
            self._free.put(shared)
        return found

    def decoded(
        self, batches: Iterable[tuple[Mark, Sequence[Record]]], cropper: Cropper
    ) -> Generator[tuple[Mark, Sequence[Record], Squares], None, None]:
        """Batches in order, the next ones decoded meanwhile; a thread of its own reads the source."""
        pool = ThreadPoolExecutor(self.askers, thread_name_prefix="decode")
        pending: deque[tuple[Mark, Sequence[Record], list[Future[Squares]]]] = deque()
        source = _read_ahead(iter(batches))

        def first() -> tuple[Mark, Sequence[Record], Squares]:
            mark, records, futures = pending.popleft()
            return mark, records, [square for future in futures for square in future.result()]

        try:
            for mark, records in source:
                parts = [records[at : at + self.question] for at in range(0, len(records), self.question)]
                pending.append((mark, records, [pool.submit(self.decode, one, cropper) for one in parts]))
                while sum(len(futures) + _weight(some) for _, some, futures in pending) > self.ahead:
                    yield first()
            while pending:
                yield first()
        finally:
            source.close()
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """End all processes, whatever they do."""
        self.workers.close()
        while self._shared:
            self._shared.pop().close()


def _weight(records: Sequence[Record]) -> float:
    """Large files of an archive count for many questions: they are held until they are decoded."""
    return sum(len(one.content) for one in records if isinstance(one.content, bytes)) / WEIGHT


def _content(record: Record) -> Content:
    """A file here is read by who decodes it."""
    if not isinstance(record.content, str):
        return record.content
    try:
        return record.read()
    except InputError as error:
        return error


def _read_ahead(items: Iterator[One]) -> Generator[One, None, None]:
    """The same, one ahead in a thread, so that a slow source is waited for while other work is done."""
    ahead = begun(lambda: next(items, None))
    try:
        while (item := ahead.result()) is not None:
            ahead = begun(lambda: next(items, None))
            yield item
    finally:
        wait([ahead], timeout=1.0)  # no longer: its source may be far away


def finished(pixels: NDArray[np.uint8], cropper: Cropper) -> Square:
    """The square of what `square_of` gave, [h, w, 3], in other memory; it may be the square already.

    The rest of a fast `Crop` is by weights of 16 bits: a third of the time of Pillow's, whose have 22. Where
    an image is made smaller, one value in two hundred is off by a grey level; where larger, some by two.
    """
    height, width = pixels.shape[:2]
    if not isinstance(cropper, Crop) or height == width == cropper.size:
        return pixels.copy()
    wide, high, left, top = cropper.placed((width, height))
    channels = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(channels, size=(high, wide), mode=cropper.interpolation, antialias=True)[0]
    kept: Square = resized.permute(1, 2, 0).numpy()
    return kept[top : top + cropper.size, left : left + cropper.size]


def begun(work: Callable[[], One]) -> Future[One]:
    """What is made, or raised, meanwhile; by a thread that the program does not wait for when it ends."""
    made: Future[One] = Future()

    def do() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=do, name="ahead", daemon=True).start()
    return made


def squares_of(
    paths: Sequence[str | Path], cropper: Cropper, *, threads: int | None = None
) -> Iterator[Square | InputError]:
    """The squares of files in order, decoded in threads; in place of one that cannot be read, why."""
    files = ((None, [Record(str(path), Path(path))]) for path in paths)
    for _, _, found in Decoder(threads or available_cpus()).decoded(files, cropper):
        yield from found


def worthwhile_processes(images: int) -> Decoder | None:
    """A process a processor, where there are many of them, once so many images pay for starting them."""
    processors = available_cpus()
    if AVAILABLE and processors >= MANY_PROCESSORS and images >= MANY_IMAGES:
        return shared_processes(min(processors, MOST_PROCESSES))
    return None


@cache
def shared_processes(count: int) -> Decoder:
    """Started once, and kept until the program ends."""
    decoder = Decoder(count, processes=True)
    atexit.register(decoder.close)
    return decoder
