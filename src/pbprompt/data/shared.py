"""Memory that a process and its children see: what a child writes there needs no line to be sent over.

Without numpy, so that children start quickly.
"""

import mmap
import os
import tempfile


def nameless_file() -> int:
    """The handle of an empty file that goes away with its last user: of memory alone where there is such."""
    try:
        return os.memfd_create("squares")
    except (AttributeError, OSError):  # another system than Linux, or an old one
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


class Shared:
    """The bytes of a file, for those who have its handle; it grows as it is asked for more."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._memory: mmap.mmap | None = None

    def memory(self, size: int) -> memoryview:
        """The first `size` bytes, to be read and written. EOFError: it was closed."""
        if self.handle < 0:
            raise EOFError
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, size)
            self._memory = mmap.mmap(self.handle, 0)
        return memoryview(self._memory)[:size]

    def close(self) -> None:
        """Give the handle back; what is still held of the memory stays good."""
        handle, self.handle, self._memory = self.handle, -1, None  # its number may soon be another file's
        os.close(handle)
