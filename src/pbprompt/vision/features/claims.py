"""Several processes that need the same images: each is encoded by one of them, and read by the others.

A claim is a lock of one byte, at the place in a file that the image's key names. So it takes no space, needs
no clearing up, and the system lets go of it when its process ends, however it ends.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: every process encodes what it needs
    fcntl = None  # type: ignore[assignment]

FILE = ".claims"
PORTIONS, SMALLEST = 16, 64  # how finely the work is shared out: in so many parts, of so many images at least
PATIENCE_SECONDS = 600.0  # for an owner of whom nothing new is heard: it may have been stopped
LOOK_SECONDS = 0.05


class Claims(contextlib.AbstractContextManager["Claims"]):
    """The images of one store that this process encodes now; all it wants where the disk has no locks."""

    def __init__(self, cache: Path, folder: Path) -> None:
        self._salt, self._index = folder.name, folder / "index.jsonl"
        self._handle: int | None = None
        if fcntl is not None:
            with contextlib.suppress(OSError):  # not there, or read-only
                cache.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(cache / FILE, os.O_RDWR | os.O_CREAT, 0o644)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def take(self, key: str) -> bool:
        """False where another process has it."""
        if self._handle is None:
            return True
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place(key))
        except OSError as error:  # another process's, or a network file system that has no locks
            return not isinstance(error, BlockingIOError | PermissionError)
        return True

    def release(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._handle, fcntl.LOCK_UN)

    def share(self, keys: Sequence[str], portions: int = PORTIONS) -> Iterator[list[int]]:
        """The places of the keys in portions: each is claimed until the next is asked for.

        What others are at comes last, once they have let go of it. By then it is stored, unless they died or
        could not read it. No claim is held while waiting, so nobody waits for one who waits.
        """
        size, left = max(SMALLEST, -(-len(keys) // portions)), list(range(len(keys)))
        while left:
            others: list[int] = []
            for at in range(0, len(left), size):
                mine: list[int] = []
                for place in left[at : at + size]:
                    (mine if self.take(keys[place]) else others).append(place)
                if mine:
                    yield mine
                    self.release()
            left = others
            if left and not self._wait(keys[left[0]]):
                yield left
                return

    def _wait(self, key: str) -> bool:
        """Until nobody has the key; False where nothing was stored for too long."""
        heard, last = time.monotonic(), self._stored()
        while not self.take(key):
            stored = self._stored()
            if stored != last:
                heard, last = time.monotonic(), stored
            elif time.monotonic() - heard > PATIENCE_SECONDS:
                return False
            time.sleep(LOOK_SECONDS)
        self.release()
        return True

    def _place(self, key: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._salt}/{key}".encode()).digest()[:6], "big")

    def _stored(self) -> int:
        with contextlib.suppress(OSError):
            return self._index.stat().st_size
        return 0
