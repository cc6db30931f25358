"""Files of JSON lines that many processes append to at once and that survive a kill at any moment."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: an append is then still a single write, only unguarded
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which a process that ends lets go of however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file lets go


def append(path: Path, records: Iterable[Any]) -> None:
    """Add one line a record with a single write; call it under `locked`.

    Where a kill left half a line at the end, a newline comes first, so that no good line joins the torn one.
    """
    content = b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if size := os.fstat(handle).st_size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":
                content = b"\n" + content
        os.write(handle, content)
    finally:
        os.close(handle)


def read(path: Path) -> Iterator[Any]:
    """The records in order; torn lines are passed over. A file that is not there holds none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)
